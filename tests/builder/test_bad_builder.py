"""A builder that is stopped, hangs, ends, talks nonsense or is somebody else's costs time only."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from builder.test_builder_process import builders, kill_builders
from fresh_process import output
from waiting import TIMEOUT, until

from torch_tenon import _C
from torch_tenon.builder.server import HEADER, Server

PATIENCE = 0.3  # seconds
lengths = itertools.count(2)  # of chains: no other window has as many calls


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Where a builder listens; the process has none afterwards."""
    tmp_path.chmod(0o700)
    yield tmp_path
    _C.set_builder("", [], PATIENCE)


@pytest.fixture
def waits() -> Iterator[None]:
    """Each window waits for its plan."""
    before = _C.execute_mode()
    _C.set_execute_mode(2)  # compiled
    yield
    _C.set_execute_mode(before)


def run_windows(count: int = 1) -> float:
    """The seconds that some windows take, whose results are those of the CPU."""
    start = time.monotonic()
    for length in itertools.islice(lengths, count):
        x = torch.arange(8.0)
        for _ in range(2):  # a window is planned when it comes again
            y, expected = x.to("tenon"), x
            for _ in range(length):
                y, expected = y.sin(), expected.sin()
            torch.testing.assert_close(y.cpu(), expected)
    return time.monotonic() - start


def listen(folder: Path, backlog: int = 8) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(folder / "builder"))
    listener.listen(backlog)
    return listener


@contextlib.contextmanager
def serving(folder: Path, serve: Callable[[socket.socket], None]) -> Iterator[list[int]]:
    """A builder that does this with each connection; gives a list with an entry for each."""
    listener, met, open_ones = listen(folder), [], []

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                met.append(1)
                open_ones.append(connection)
                with contextlib.suppress(OSError):
                    serve(connection)

    thread = threading.Thread(target=accept)
    thread.start()
    _C.set_builder(str(folder / "builder"), ["/bin/false"], PATIENCE)
    try:
        yield met
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        for connection in open_ones:
            connection.close()
        thread.join(TIMEOUT)
        listener.close()


def hears_nothing(connection: socket.socket) -> None:
    pass


def reads_alone(connection: socket.socket) -> None:
    connection.recv(1 << 16)


def hangs_up(connection: socket.socket) -> None:
    connection.close()


def hangs_up_within_an_answer(connection: socket.socket) -> None:
    connection.recv(1 << 16)
    connection.sendall(HEADER.pack(0, 1, 0.01)[:7])
    connection.close()


def answers_what_nobody_asked(connection: socket.socket) -> None:
    connection.sendall(HEADER.pack(123456789, 1, 0.01) * 100)


def talks_nonsense_for_good(connection: socket.socket) -> None:
    nonsense = random.Random(1).randbytes(1 << 16)
    while True:
        connection.sendall(nonsense)


BAD = [
    hears_nothing,
    reads_alone,
    hangs_up,
    hangs_up_within_an_answer,
    answers_what_nobody_asked,
    talks_nonsense_for_good,
]


@pytest.mark.parametrize("serve", BAD)
def test_who_waits_for_a_plan_gets_it_by_a_thread(
    folder: Path, waits: None, serve: Callable[[socket.socket], None]
) -> None:
    with serving(folder, serve) as met:
        before = sum(run.by_plan for run in _C.window_runs())
        assert run_windows(2) < TIMEOUT
        until(lambda: met)
        assert sum(run.by_plan for run in _C.window_runs()) >= before + 2


@pytest.mark.parametrize("serve", BAD)
def test_nobody_else_waits(folder: Path, serve: Callable[[socket.socket], None]) -> None:
    run_windows()
    with serving(folder, serve):
        assert run_windows(4) < 60


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one processor has no others")
def test_a_processor_is_left_to_a_builder_that_owes_a_plan(folder: Path) -> None:
    """All are used again once it owes none. Numbers are the same meanwhile, whatever runs."""
    threads, all_of_them = torch.get_num_threads(), os.cpu_count() or 1
    torch.set_num_threads(all_of_them)
    try:
        with serving(folder, hears_nothing):
            _C.set_builder(str(folder / "builder"), ["/bin/false"], TIMEOUT)
            assert _C.threads_beside_builder() == 0
            until(lambda: run_windows() >= 0 and _C.builder_state()[1] > 0)
            assert _C.threads_beside_builder() == all_of_them - 1
            run_windows()
            assert torch.get_num_threads() == all_of_them  # as the program sees it
            _C.set_builder("", [], PATIENCE)
            assert _C.threads_beside_builder() == 0
    finally:
        torch.set_num_threads(threads)


def test_a_builder_that_accepts_nobody_blocks_nobody(folder: Path, waits: None) -> None:
    with listen(folder, backlog=0) as listener, contextlib.ExitStack() as fillers:
        while True:
            filler = fillers.enter_context(socket.socket(socket.AF_UNIX))
            filler.setblocking(False)
            try:
                filler.connect(listener.getsockname())
            except BlockingIOError:
                break
        _C.set_builder(str(folder / "builder"), ["/bin/false"], PATIENCE)
        start = time.monotonic()
        _C.start_builder()
        assert time.monotonic() - start < 60
        assert run_windows(2) < TIMEOUT


def test_a_command_that_starts_nothing_is_given_up(folder: Path, waits: None) -> None:
    _C.set_builder(str(folder / "builder"), ["/bin/false"], PATIENCE)
    before = sum(run.by_plan for run in _C.window_runs())
    assert run_windows(2) < TIMEOUT
    assert sum(run.by_plan for run in _C.window_runs()) >= before + 2


@pytest.mark.parametrize("seconds", [float("inf"), float("nan"), 1e300, -1.0])
def test_a_pace_that_cannot_be_is_not_believed(folder: Path, seconds: float) -> None:
    try:
        (folder / "first").mkdir()
        tell_the_pace(folder / "first", seconds)
        assert 0 < greatest_price() <= 10 * MOST_OF_COST
    finally:  # by which tests after this one say which plans pay
        (folder / "last").mkdir()
        tell_the_pace(folder / "last", USUAL_PACE)
        assert 0 < greatest_price() <= 1.1 * USUAL_PACE * MOST_OF_COST


USUAL_PACE = 0.01  # what the core takes it for until it is told
MOST_OF_COST = 2.5  # times what a plan costs: until a window was timed with fewer threads


def greatest_price() -> float:
    """Of a call, in the windows that there are; negative where one has none."""
    prices = []
    for run in _C.window_runs():
        if run.number >= 0:
            calls = int(run.name.split()[0]) if " calls" in run.name else 1
            prices.append(run.price / calls if run.price > 0 else -1.0)
    return max(prices) if min(prices) > 0 else -1.0


def tell_the_pace(folder: Path, seconds: float) -> None:
    """A builder says what a call costs it."""

    def answer(connection: socket.socket) -> None:
        number, size, _ = HEADER.unpack(connection.recv(HEADER.size, socket.MSG_WAITALL))
        connection.recv(size, socket.MSG_WAITALL)
        connection.sendall(HEADER.pack(number, 0, seconds))

    folder.chmod(0o700)
    torch.ones(8, device="tenon").sin().cpu()  # the first call of an op runs at once
    with serving(folder, answer) as met:
        run_windows()
        until(lambda: _C.window_runs() and met and not _C.builder_state()[1])  # the first hears it


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be two users")
def test_a_builder_of_another_user_is_told_nothing(folder: Path, waits: None) -> None:
    heard = """
        import socket, sys
        listener = socket.socket(fileno=int(sys.argv[1]))
        listener.listen()
        print(flush=True)
        print(len(listener.accept()[0].recv(100)))
    """
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "builder"))
        other = subprocess.Popen(
            [
                "/usr/bin/env",
                "python3",
                "-c",
                "\n".join(map(str.strip, heard.splitlines())),
                str(listener.fileno()),
            ],
            pass_fds=[listener.fileno()],
            user=65534,
            stdout=subprocess.PIPE,
            text=True,
        )
    assert other.stdout is not None
    try:
        assert other.stdout.readline() == "\n"
        _C.set_builder(str(folder / "builder"), ["/bin/false"], PATIENCE)
        assert run_windows(2) < TIMEOUT
        assert other.stdout.readline() == "0\n"
    finally:
        other.kill()
        other.communicate()


def test_a_folder_that_others_may_write_has_no_builder(folder: Path, waits: None) -> None:
    folder.chmod(0o777)
    with serving(folder, reads_alone) as met:
        assert run_windows(1) < TIMEOUT
        assert not met


def test_the_builder_hears_its_own_user_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with listen(folder) as listener, socket.socket(socket.AF_UNIX) as stranger:
        server = Server(listener)
        monkeypatch.setattr(os, "getuid", lambda: 12345)
        stranger.connect(listener.getsockname())
        server._listen(1.0)
        assert not server.clients and stranger.recv(1) == b""


FORKS = """
    import os, socket, sys, tempfile, time
    import torch
    from torch_tenon import _C
    from torch_tenon.builder.counts import plan_counts

    folder = tempfile.mkdtemp()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(folder + "/builder")
    listener.listen()
    _C.set_builder(folder + "/builder", ["/bin/false"], 0.3)

    def step():
        x = torch.arange(8.0)
        assert ((x.to("tenon") * 2 + 1).cpu() == x * 2 + 1).all()

    deadline = time.monotonic() + 100
    step()
    while True:  # until the patience with the builder is over, and from then on for a thread
        step()
        if plan_counts()["waiting"]:
            break
        assert not plan_counts()["ready"] and time.monotonic() < deadline, plan_counts()
    if os.fork() == 0:
        while not plan_counts()["hits"] and time.monotonic() < deadline:
            step()
            time.sleep(0.01)
        print(plan_counts()["hits"] > 0, flush=True)
        os._exit(0)
    os.wait()
"""


@pytest.mark.slow
def test_a_child_asks_again_for_what_its_parent_waits_for() -> None:
    assert output(FORKS, TENON_BUILDER="thread") == "True"


@pytest.mark.slow
def test_it_keeps_nothing_open_of_the_program_that_starts_it(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    program = "import torch; from torch_tenon import _C; torch.zeros(3, device='tenon')"
    subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "TENON_CACHE_DIR": str(tmp_path / "cache"), "TENON_PLAN_FILES": "1"},
        pass_fds=[writer],
        check=True,
    )
    os.close(writer)
    os.set_blocking(reader, False)
    try:
        until(lambda: builders(tmp_path / "cache"))
        while not is_over(reader):
            assert builders(tmp_path / "cache"), "it held the pipe as long as it was there"
            time.sleep(0.05)
        assert builders(tmp_path / "cache"), "nobody is there any more"
    finally:
        kill_builders(tmp_path / "cache")
        os.close(reader)


def is_over(reader: int) -> bool:
    """Whether nobody has the other end of a pipe, to which nobody writes."""
    try:
        return os.read(reader, 1) == b""
    except BlockingIOError:
        return False
