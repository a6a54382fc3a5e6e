"""The builder process: shared, started when it is needed, and no loss when it is gone."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import fresh_process
import pytest
from builder.whole_scripts import finish, in_step, run, start
from waiting import TIMEOUT, until

from torch_tenon.builder.server import NICE


def builders(cache: Path) -> list[int]:
    """The builder processes that work for a cache directory."""
    found = []
    for lock in cache.glob("builder-*.lock"):
        with contextlib.suppress(OSError, ValueError):
            pid = int(lock.read_text())
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")")[-1].split()[0]
            found += [pid] if state != "Z" else []
    return found


def kill_builders(cache: Path) -> int:
    found = builders(cache)
    for pid in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return len(found)


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "cache"
    kill_builders(tmp_path / "cache")


PROCESS = {"TENON_BUILDER": "process"}


@pytest.mark.slow
def test_it_makes_plans_for_several_processes(cache: Path) -> None:
    several = [start(cache, WAITS="1", **PROCESS) for _ in range(3)]
    for process in several:
        assert in_step(finish(process), 5)[0] > 0
    found = builders(cache)
    assert len(found) <= 1
    for pid in found:
        with contextlib.suppress(ProcessLookupError):
            theirs = os.getpriority(os.PRIO_PROCESS, pid)
            assert theirs == min(os.getpriority(os.PRIO_PROCESS, 0) + NICE, 19)
    second = run(cache, **PROCESS)
    assert in_step(second, 1)[0] > 0 and in_step(second, 0)[2] == 0


@pytest.mark.slow
def test_killed_again_and_again(cache: Path) -> None:
    process = start(cache, WAITS="1", **PROCESS)
    killed = 0
    while process.poll() is None:
        if killed:  # the first at once, the others with some of their work done
            time.sleep(1.5)
        killed += kill_builders(cache)
        time.sleep(0.01)
    finish(process)
    assert killed > 0
    assert in_step(run(cache, WAITS="1", **PROCESS), 5)[0] > 0


@pytest.mark.slow
def test_files_that_vanish_while_scripts_run(cache: Path) -> None:
    process = start(cache, WAITS="1", **PROCESS)
    while process.poll() is None:
        time.sleep(0.3)
        for path in cache.glob("*/*"):
            with contextlib.suppress(OSError):
                path.unlink()
    finish(process)


@pytest.mark.slow
def test_a_directory_that_cannot_be_written(cache: Path) -> None:
    run(cache, WAITS="1", TENON_BUILDER="thread")
    kept = sorted(cache.rglob("*"))
    for path in [cache, *(p for p in kept if p.is_dir())]:
        path.chmod(0o500 if os.getuid() else 0o700)
    run(cache, WAITS="1", **PROCESS)
    for path in [cache, *(p for p in kept if p.is_dir())]:
        path.chmod(0o700)


NEARLY = """
    import time
    from pathlib import Path
    import torch
    from torch_tenon import _C, config

    x, deadline = torch.ones(1013, device="tenon"), time.monotonic() + 100
    while True:
        y = x
        for k in range(120):
            y = (y * 2 if k % 3 else y - 1).relu()
        y.cpu()
        found = [w for w in _C.window_runs() if w.saving >= 0.3 * w.price]
        if any(w.state for w in _C.window_runs()):
            raise SystemExit(75)  # a run that was held up has had time to pay
        if any(w.by_reference > 1 for w in found):  # a tenth is enough, 1 too much
            break
        assert time.monotonic() < deadline
    cache = Path(config.cache_directory())
    while not any(p.is_socket() for p in cache.glob("builder-*")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
"""


@pytest.mark.slow
def test_a_process_that_ends_asks_for_what_had_no_time_to_pay(tmp_path: Path) -> None:
    for number in range(20):
        cache = tmp_path / str(number)
        env = {"TENON_CACHE_DIR": str(cache), "TENON_PLAN_FILES": "1", "TENON_PLAN": "worthwhile"}
        try:
            done = fresh_process.run(NEARLY, **env, **PROCESS)
            if done.returncode == 75:
                continue
            assert done.returncode == 0, done.stderr
            until(lambda cache=cache: list(cache.glob("plans/*.plan")))
            assert len(list(cache.glob("plans/*.plan"))) == 1
            return
        finally:
            kill_builders(cache)
    raise AssertionError("each run was held up")


@pytest.mark.slow
def test_nobody_makes_plans_where_that_is_wanted(cache: Path) -> None:
    windows = run(cache, TENON_BUILDER="off")
    assert windows[-1][0] == 0 and windows[-1][1] > 0


FIRST_TENSOR = "import torch; torch.zeros(3, device='tenon'); input()"


def starts_with_the_first_tensor(cache: Path, **environment: str) -> bool:
    process = subprocess.Popen(
        [sys.executable, "-c", FIRST_TENSOR],
        env={**os.environ, "TENON_CACHE_DIR": str(cache), "TENON_PLAN_FILES": "1", **environment},
        stdin=subprocess.PIPE,
    )
    try:
        deadline = time.monotonic() + (TIMEOUT if not environment else 5)
        while not (found := builders(cache)) and time.monotonic() < deadline:
            time.sleep(0.05)
    finally:
        process.communicate(b"\n", timeout=TIMEOUT)
    return bool(found)


@pytest.mark.slow
def test_it_starts_with_the_first_tensor_where_nothing_is_known(cache: Path) -> None:
    assert starts_with_the_first_tensor(cache)


@pytest.mark.slow
def test_nobody_starts_it_where_no_plans_are_wanted(cache: Path) -> None:
    assert not starts_with_the_first_tensor(cache, TENON_EXECUTE="reference")


UNHEARD = """
import random, time, torch
from torch_tenon import _C

_C.set_plan_all(True)
x = torch.ones(9, device="tenon")

def window(seed, calls=60):  # a loop of a few calls would be several windows
    y, draw = x, random.Random(seed)
    for _ in range(calls):
        y = y * 2 if draw.random() < 0.5 else y.relu()
    _C.commit_all()

deadline = time.monotonic() + 120
while not any(w.by_plan for w in _C.window_runs()) and time.monotonic() < deadline:
    window(0)
asked, seed = 0, 1
while not asked and time.monotonic() < deadline:
    for _ in range(2):
        window(seed)
    asked, seed = _C.builder_state()[1], seed + 1
while _C.builder_state()[1] and time.monotonic() < deadline:
    window(0)
print(asked > 0, _C.builder_state()[1])
"""


def test_an_answer_is_heard_also_when_its_window_never_comes_again(cache: Path) -> None:
    """While it is not, loops leave the builder a processor."""
    printed = fresh_process.output(
        UNHEARD,
        TENON_CACHE_DIR=str(cache),
        TENON_EXECUTE="auto",
        TENON_PLAN_FILES="1",  # the builder is a process where plans are kept
        **PROCESS,
    )
    assert printed.split() == ["True", "0"]


BESIDE = """
    import os, signal, time
    from pathlib import Path
    import torch
    from torch_tenon import _C, config

    torch.set_num_threads(2)
    x, deadline = torch.ones(300, 1000, device="tenon"), time.monotonic() + 200

    def step(calls, factor):
        y = x
        for k in range(calls):
            y = (y * factor + k).abs()
        return y[0, 0].item()

    def runs(calls):  # of the window of so many calls: by plan, by reference, its plan's state
        return next(
            ((w.by_plan, w.by_reference, w.state) for w in _C.window_runs()
             if w.name.startswith(f"{3 * calls} calls")), (0, 0, 0))

    def until(happened, calls):
        while not happened():
            assert time.monotonic() < deadline, [(w.name, w.state) for w in _C.window_runs()]
            step(calls, 0.5)

    until(lambda: runs(20)[0] > 0, 20)
    (lock,) = Path(config.cache_directory()).glob("builder-*.lock")
    os.kill(int(lock.read_text()), signal.SIGSTOP)
    until(lambda: runs(31)[2] == 1, 31)
    before, end = runs(20), time.monotonic() + 0.3
    while runs(20)[0] < before[0] + 40 or time.monotonic() < end:
        step(20, 0.5)
        assert time.monotonic() < deadline
    os.kill(int(lock.read_text()), signal.SIGKILL)
    print(runs(20)[1] - before[1])
"""


@pytest.mark.slow
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one processor is left to nobody")
def test_runs_beside_it_do_not_say_how_long_a_plan_takes(cache: Path) -> None:
    """They have a thread less. A plan was left for its calls, which are compared with all."""
    environment = {"TENON_CACHE_DIR": str(cache), "TENON_PLAN": "worthwhile", **PROCESS}
    environment["TENON_PLAN_FILES"] = "1"
    assert fresh_process.output(BESIDE, **environment) == "0"
