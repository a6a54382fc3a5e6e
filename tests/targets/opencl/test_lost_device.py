"""The opencl target's library on a driver whose device fails: which tickets tell of it."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import torch_tenon.targets.opencl

sys.path.insert(0, str(Path(__file__).parents[1]))
import through_ctypes
from c_compiler import needs_compiler, shared_object

PATH = Path(torch_tenon.targets.opencl.__file__).parent / "libtenon_opencl.so"

pytestmark = [
    needs_compiler,
    pytest.mark.skipif(not PATH.exists(), reason="the library is not built"),
]


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = Path(__file__).parent / "failing_driver.c"
    return shared_object(source, tmp_path_factory.mktemp("driver") / "libOpenCL.so.1")


def there(driver: Path, code: str) -> str:
    """What a process prints that has this driver, which the library takes, and the library."""
    start = f"""
        import sys
        sys.path.insert(0, {str(Path(through_ctypes.__file__).parent)!r})
        from through_ctypes import *
        driver = ctypes.CDLL({str(driver)!r})
        library = Library({str(PATH)!r})
        block = library.allocate(512)
        data = ctypes.create_string_buffer(512)

        def commit():
            library.copy((block, 0), ctypes.addressof(data), 512)
            return library.commit()

        def told(ticket):
            try:
                library.wait(ticket)
            except Failed as error:
                return error.code, str(error)
            return ()
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(start) + textwrap.dedent(code)],
        env={**os.environ, "TENON_DEVICES": "1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def test_each_ticket_that_failed_tells_of_it_and_no_other(driver: Path) -> None:
    code = """
        fine = commit()
        driver.end_with(-2)
        lost = commit()
        driver.end_with(-5)
        driver.hold(1)
        waited = commit()
        asked = commit()
        assert not library.passed(waited)
        driver.end_with(-5)
        driver.hold(0)
        driver.end_with(0)
        after = commit()
        for _ in range(3):
            assert all(library.passed(t) for t in (fine, lost, waited, asked, after))
            code, text = told(lost)
            assert code == DEVICE_LOST and "lost with all that it held" in text, (code, text)
            assert told(waited)[0] == told(asked)[0] == OUT_OF_MEMORY
            assert told(fine) == told(after) == ()
        library.forget(lost)
        assert told(lost) == () and library.passed(lost)
        print(told(waited)[1])
    """
    assert there(driver, code) == "OpenCL: what was committed failed with -5"


def test_a_wait_that_ends_with_the_device(driver: Path) -> None:
    code = """
        driver.hold(1)
        ticket = commit()
        driver.end_with(-2)
        print(told(ticket)[0] == DEVICE_LOST, told(ticket)[0] == DEVICE_LOST)
    """
    assert there(driver, code) == "True True"


def test_what_is_not_handed_over_is_told_at_once(driver: Path) -> None:
    code = """
        driver.flush_with(-6)
        try:
            commit()
        except Failed as error:
            print(error)
        driver.flush_with(0)
        assert told(library.commit()) == ()
    """
    expected = "OpenCL: handing commands to the device failed with -6"
    assert there(driver, code) == expected


def test_what_the_driver_made_goes(driver: Path) -> None:
    """An event is the driver's until its ticket has passed, forgotten or not."""
    code = """
        for turn in range(10_000):
            ticket = commit()
            if turn % 2:
                library.forget(ticket)
            assert driver.live_events() <= 2
        assert library.seconds(1) == 3.0 and library.seconds(2) == 0.0
        driver.hold(1)
        tickets = [commit() for _ in range(20)]
        for t in tickets:
            library.forget(t)
        assert driver.live_events() >= 20
        driver.hold(0)
        commit()
        assert driver.live_events() <= 1
        before = driver.live_buffers()
        library.release(library.allocate(1))
        assert driver.live_buffers() == before
        print("gone")
    """
    assert there(driver, code) == "gone"
