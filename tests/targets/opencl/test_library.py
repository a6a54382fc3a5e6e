"""The opencl target's library by its C interface alone: without the core, and without PyTorch."""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from needs import opencl
from waiting import TIMEOUT

import torch_tenon.targets.opencl

sys.path.insert(0, str(Path(__file__).parents[1]))
import through_ctypes
from through_ctypes import Failed, Library

PATH = Path(torch_tenon.targets.opencl.__file__).parent / "libtenon_opencl.so"

pytestmark = [
    opencl,
    pytest.mark.skipif(not PATH.exists(), reason="the library is not built"),
]

# Doubles n numbers; a check of its own tells of the first that is negative.
DOUBLED = b"""
__attribute__((reqd_work_group_size(4, 1, 1)))
__kernel void doubled_4_1(__global uchar *m, const ulong offset, const long n,
                          __global long *status) {
  __global float *x = (__global float *)(m + offset);
  const long i = get_global_id(0);
  if (i >= n)
    return;
  if (x[i] < 0) {
    status[0] = 7;
    status[1] = i;
  }
  x[i] *= 2;
}
"""
# Counts, so that it takes a while.
SLOW = b"""
__attribute__((reqd_work_group_size(1, 1, 1)))
__kernel void slow_1_0(__global uchar *m, const ulong offset, const long n) {
  __global volatile int *x = (__global volatile int *)(m + offset);
  for (long i = 0; i < n; ++i)
    x[0] += 1;
}
"""


@pytest.fixture(scope="module")
def library() -> Library:
    return Library(PATH)


@pytest.fixture
def block(library: Library) -> Iterator[int]:
    handle = library.allocate(4096)
    yield handle
    library.release(handle)


def there(code: str, **environment: str) -> str:
    """What a process without PyTorch prints, with the library open."""
    start = f"""
        import sys
        sys.path.insert(0, {str(Path(through_ctypes.__file__).parent)!r})
        from through_ctypes import *
        library = Library({str(PATH)!r})
    """
    text = textwrap.dedent(start) + textwrap.dedent(code)
    done = subprocess.run(
        [sys.executable, "-c", text],
        env={**os.environ, "TENON_DEVICES": "1", **environment},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def test_what_it_says_of_the_hardware(library: Library) -> None:
    found = library.functions
    assert found.name == b"opencl" and found.size == ctypes.sizeof(found)
    assert found.devices >= 1 and not found.host_memory
    facts = dict(line.split(": ", 1) for line in found.facts.decode().splitlines())
    assert list(facts) == ["OpenCL device", "OpenCL driver", "The device lacks"]
    assert "compute units" in facts["OpenCL device"]
    assert library.total_memory() >= 1 << 20
    assert not found.call  # the device does not run the host's code


def test_copies_both_ways_and_within(library: Library, block: int) -> None:
    data = bytes(range(256)) * 4
    library.write(block, data)
    assert library.read(block, 1024) == data
    library.copy((block, 2048), (block, 100), 500)
    assert library.read(block, 500, offset=2048) == data[100:600]
    library.copy((0, 0), (0, 0), 0)  # of a tensor without elements
    assert library.passed(library.commit())


def test_tickets(library: Library, block: int) -> None:
    start = library.commit()
    assert library.passed(start) and library.commit() == start  # nothing was enqueued
    kernel = library.load(SLOW, "slow_1_0")
    for turn in range(10):  # whoever looks late finds it over
        library.launch(kernel, [(block, 0)], [1, 30_000_000 << min(turn, 4)])
        first = library.commit()
        library.launch(kernel, [(block, 0)], [1, 10])
        second = library.commit()
        assert start < first < second
        later, earlier = library.passed(second), library.passed(first)
        if not earlier:
            break
        library.wait(second)
    assert not earlier and not later
    library.wait(second)
    assert library.passed(first) and library.passed(second)
    assert 0 < library.seconds(first) <= library.seconds(second)
    for ticket in (first, first, start, 0):
        library.forget(ticket)
        library.wait(ticket)
        assert library.passed(ticket)
    assert library.seconds(second) > 0
    library.unload(kernel)


def test_two_queues_with_an_order_between_them(library: Library, block: int) -> None:
    """A kernel counts; a copy of what it counts on another queue comes after it, and back."""
    assert library.functions.copy_queues == 1
    kernel = library.load(SLOW, "slow_1_0")
    zero, found = ctypes.create_string_buffer(4), ctypes.create_string_buffer(4)
    library.write(block, bytes(4))
    for turn in range(5):
        count = 2_000_000 + turn
        library.after(library.commit(queue=1))  # which has passed
        library.launch(kernel, [(block, 0)], [1, count])
        counted = library.commit()
        library.after(counted, queue=1)
        library.copy(ctypes.addressof(found), (block, 0), 4, queue=1)
        library.copy((block, 0), ctypes.addressof(zero), 4, queue=1)
        copied = library.commit(queue=1)
        assert copied > counted and library.commit(queue=1) == copied
        library.after(copied)
        library.launch(kernel, [(block, 0)], [1, turn])
        last = library.commit()
        library.wait(last)
        assert library.passed(counted) and library.passed(copied)
        assert int.from_bytes(found, sys.byteorder) == count
        assert int.from_bytes(library.read(block, 4), sys.byteorder) == turn
        library.write(block, bytes(4))
        for before, after in ((counted, copied), (copied, last)):
            assert 0 < library.started(before) < library.seconds(before) <= library.started(after)
    with pytest.raises(Failed, match="there is no queue 2") as raised:
        library.commit(queue=2)
    assert raised.value.code == through_ctypes.OUT_OF_RANGE
    library.unload(kernel)


def test_threads_wait_while_another_enqueues(library: Library, block: int) -> None:
    kernel = library.load(SLOW, "slow_1_0")
    errors: list[Exception] = []

    def wait(ticket: int) -> None:
        try:
            library.wait(ticket)
            assert library.passed(ticket) and library.seconds(ticket) > 0
            library.forget(ticket)
            library.release(library.allocate(512))
        except Exception as error:
            errors.append(error)

    threads = []
    for _ in range(20):
        library.launch(kernel, [(block, 0)], [1, 100_000])
        threads.append(threading.Thread(target=wait, args=(library.commit(),)))
        threads[-1].start()
    for thread in threads:
        thread.join(TIMEOUT)
    library.unload(kernel)
    assert not errors and not any(t.is_alive() for t in threads)


def doubled(library: Library, block: int, kernel: int, numbers: list[float]) -> list[int]:
    """Runs the kernel over numbers, and gives what its check found."""
    library.write(block, struct.pack(f"{len(numbers)}f", *numbers))
    status = (ctypes.c_int64 * 4)()
    library.launch(kernel, [(block, 4)], [2, 5], status)
    library.wait(library.commit())
    after = struct.unpack(f"{len(numbers)}f", library.read(block, 4 * len(numbers)))
    want = [x * 2 if 0 < k < 6 else x for k, x in enumerate(numbers)]
    assert list(after) == want
    return list(status)


def test_a_kernel_from_source(library: Library, block: int) -> None:
    kernel = library.load(DOUBLED, "doubled_4_1")
    assert doubled(library, block, kernel, [1, 2, 3, 4, 5, 6, 7]) == [0, 0, 0, 0]
    assert doubled(library, block, kernel, [1, 2, -3, 4, 5, 6, 7]) == [7, 1, 0, 0]
    assert doubled(library, block, kernel, [1, 2, 3, 4, 5, 6, 7]) == [0, 0, 0, 0]
    library.launch(kernel, [(block, 0)], [0, 5], (ctypes.c_int64 * 4)())  # no work-groups
    with pytest.raises(Failed, match="more checks than there are words"):
        library.launch(kernel, [(block, 0)], [1, 5])
    with pytest.raises(Failed, match="takes 4 arguments, and gets 5"):
        library.launch(kernel, [(block, 0)], [1, 5, 5], (ctypes.c_int64 * 4)())
    library.wait(library.commit())
    library.unload(kernel)


RECORDED = f"""
    kernel = library.load({DOUBLED!r}, "doubled_4_1")
    block, other = library.allocate(4096), library.allocate(4096)
    library.write(other, bytes(8))  # new memory holds anything, a negative number too
    words = [(c_int64 * 4)() for _ in range(3)]
    def replayed(*numbers):
        library.write(block, bytes((ctypes.c_float * 3)(*numbers)))
        library.replay(recording)
        library.wait(library.commit())
        after = (ctypes.c_float * 3).from_buffer_copy(library.read(block, 12))
        print(*(f"{{x:g}}" for x in after), *(status[0] for status in words), end="; ")
        for status in words:
            status[:] = 0, 0, 0, 0

    recording = library.begin_recording()
    library.launch(kernel, [(block, 0)], [1, 3], words[0])
    library.launch(kernel, [(block, 0)], [0, 3], words[1])  # no work-groups
    library.launch(kernel, [(block, 4)], [1, 1], words[2])
    library.end_recording(recording)
    replayed(1, 2, 3)
    library.launch(kernel, [(other, 0)], [1, 2], words[1])  # sets the kernel's arguments anew
    replayed(-1, 2, 3)
    replayed(1, -2, 3)
    replayed(1, 2, 4)
    library.free_recording(recording)

    recording = library.begin_recording()
    library.end_recording(recording)  # of nothing
    replayed(1, 2, 3)
    library.free_recording(recording)

    recording = library.begin_recording()
    library.launch(kernel, [(block, 0)], [1, 3], words[0])
    try:
        library.launch(kernel, [(block, 0)], [1, 3, 3], words[0])
    except Failed as error:
        print("takes 4 arguments" in str(error))
    library.free_recording(recording)  # before it has ended: what is launched now is enqueued
    library.write(block, bytes((ctypes.c_float * 3)(5, 6, 7)))
    library.launch(kernel, [(block, 0)], [1, 3], words[0])
    library.wait(library.commit())
    print(*(ctypes.c_float * 3).from_buffer_copy(library.read(block, 12)))
"""


@pytest.mark.parametrize("way", ["auto", "buffer", "kernels"])
def test_kernels_are_recorded_and_replayed(way: str) -> None:
    found = there(RECORDED, TENON_OPENCL_REPLAY=way)
    assert found.split("\n") == [
        "2 8 6 0 0 0; -2 8 6 7 0 0; 2 -8 6 7 0 7; 2 8 8 0 0 0; 1 2 3 0 0 0; True",
        "10.0 12.0 14.0",
    ]


def test_a_setting_turns_recording_off() -> None:
    code = "print(bool(library.functions.begin_recording), bool(library.functions.replay))"
    assert there(code, TENON_OPENCL_REPLAY="off") == "False False"
    assert there(code, TENON_OPENCL_REPLAY="") == "True True"


@pytest.mark.slow
def test_a_kernel_from_a_binary(library: Library, block: int) -> None:
    import pyopencl

    from torch_tenon.targets.opencl.target import devices

    program = pyopencl.Program(pyopencl.Context(devices()[:1]), DOUBLED.decode())
    built = program.build(cache_dir=False)
    binary = built.get_info(pyopencl.program_info.BINARIES)[0]
    assert b"\0" in binary
    kernels = [library.load(binary, "doubled_4_1") for _ in range(2)]
    assert kernels[0] != kernels[1]
    library.unload(kernels[0])
    assert doubled(library, block, kernels[1], [1, 2, -3, 4, 5, 6, 7]) == [7, 1, 0, 0]
    library.unload(kernels[1])


@pytest.mark.parametrize(
    ("code", "entry", "text"),
    [
        (DOUBLED, "tripled_4_1", "making the kernel tripled_4_1 failed"),
        (DOUBLED, "doubled", "its name has to end in"),
        (DOUBLED, "doubled_0_1", "its name has to end in"),
        (DOUBLED, "doubled_4_x", "its name has to end in"),
        (b"__kernel void f_1_0(__global int *x) { x[0] = y; }", "f_1_0", "undeclared identifier"),
        (bytes(range(256)), "f_1_0", "no binary of its own"),
        (b"", "f_1_0", "no code"),
    ],
)
def test_kernels_that_are_not_there(library: Library, code: bytes, entry: str, text: str) -> None:
    with pytest.raises(Failed, match=text):
        library.load(code, entry)


def test_out_of_memory(library: Library) -> None:
    with pytest.raises(Failed, match="making a buffer") as raised:
        library.allocate(1 << 50)
    assert raised.value.code == through_ctypes.OUT_OF_MEMORY


def test_another_version_of_the_interface() -> None:
    with pytest.raises(Failed, match="version 1 of the interface, and version 99 is") as raised:
        Library(PATH, interface=99)
    assert raised.value.code == through_ctypes.UNSUPPORTED


def test_ten_thousand_commits_leave_nothing_behind() -> None:
    code = """
        block = library.allocate(4096)
        def resident():
            return int(open("/proc/self/statm").read().split()[1]) * 4096
        def commit(times, forget):
            for _ in range(times):
                library.copy((block, 0), (block, 2048), 64)
                ticket = library.commit()
                if forget:
                    library.forget(ticket)
                if ticket % 100 == 0:  # else a device that is slower has much to do yet
                    library.wait(ticket)
            library.wait(ticket)
            return ticket
        commit(2000, True)
        before = resident()
        last = commit(10_000, True)
        grown = resident() - before
        assert grown < 2 << 20, grown
        assert library.passed(last) and library.passed(17)
        library.wait(17)
        print(commit(100, False) - last)
    """
    assert there(code) == "100"


def test_devices_are_as_many_as_the_setting_says() -> None:
    code = """
        for device in range(3):
            block = library.allocate(512, device)
            library.write(block, b"abcd", device)
            assert library.read(block, 4, device=device) == b"abcd"
        print(library.functions.devices)
    """
    assert there(code, TENON_DEVICES="3") == "3"


def test_a_setting_that_is_not_valid_is_told() -> None:
    code = f"Library({str(PATH)!r})"
    with pytest.raises(AssertionError, match="TENON_DEVICES='many' is not valid: expected a whole"):
        there(code, TENON_DEVICES="many")


def test_without_a_platform_it_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="no OpenCL platform with a device: install"):
        there("", OCL_ICD_VENDORS=str(tmp_path))


def test_a_process_ends_while_the_device_computes() -> None:
    code = f"""
        block = library.allocate(512)
        kernel = library.load({SLOW!r}, "slow_1_0")
        library.launch(kernel, [(block, 0)], [1, 200_000_000])
        print(library.commit())
    """
    assert there(code) == "1"  # in time
