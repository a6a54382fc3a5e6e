"""The process that stands by to become the builder: seen by no program, and gone with it."""

from __future__ import annotations

from pathlib import Path

import fresh_process
import pytest
from builder.test_builder_process import builders, kill_builders

# What its children are, of any generation: those that stand by are nobody's, in a session of
# their own, and have the program's command line.
BEGIN = """
    import os, pathlib, time

    def copies():
        mine, found = pathlib.Path("/proc/self/cmdline").read_bytes(), []
        for folder in pathlib.Path("/proc").iterdir():
            try:
                if folder.name.isdigit() and (folder / "comm").read_text() == "tenon-builder\\n":
                    if (folder / "cmdline").read_bytes() == mine:
                        found.append(int(folder.name))
            except OSError:
                pass
        return found

    def wait_for(condition):
        deadline = time.monotonic() + 120
        while not condition() and time.monotonic() < deadline:
            time.sleep(0.02)
        return condition()
"""
PLAN = """
    x = torch.ones(1013, device="tenon")
    for _ in range(5):
        y = x
        for k in range(40):
            y = (y * 2 if k % 3 else y - 1).relu()
        y.cpu()
"""


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def run(code: str, cache: Path, **environment: str) -> str:
    env = {"TENON_CACHE_DIR": str(cache), "TENON_PLAN_FILES": "1", "TENON_BUILDER": "process"}
    own = f"\n    # of {cache}: no other program has this command line\n"
    done = fresh_process.run(BEGIN + own + code, imports=True, **{**env, **environment})
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_it_becomes_the_builder(cache: Path) -> None:
    made = """
    import torch
    assert wait_for(lambda: len(copies()) == 1)
    [waiting] = copies()
    """
    ends = """
    cache = pathlib.Path(os.environ["TENON_CACHE_DIR"])
    assert wait_for(lambda: list(cache.glob("builder-*.lock")))
    [lock] = cache.glob("builder-*.lock")
    assert wait_for(lambda: lock.read_text().strip())
    assert int(lock.read_text()) == waiting
    """
    try:
        run(made + PLAN + ends, cache, TENON_EXECUTE="compiled")
        assert len(list(cache.glob("plans/*.plan"))) > 0
        # The next program finds a builder, and needs none that stands by.
        run("\n    import torch\n    time.sleep(0.5)\n    assert not copies()\n", cache)
    finally:
        kill_builders(cache)


@pytest.mark.slow
def test_a_program_has_no_child_of_it_and_ends_it(cache: Path) -> None:
    code = """
    import torch
    assert wait_for(copies)
    try:
        os.waitpid(-1, os.WNOHANG)
        raise SystemExit("there is a child")
    except ChildProcessError:
        print(*copies())
    """
    waiting = int(run(code, cache))
    gone = f"\n    assert wait_for(lambda: not pathlib.Path('/proc/{waiting}').exists())\n"
    run(gone, cache)
    assert builders(cache) == []


@pytest.mark.slow
def test_a_program_may_ignore_the_end_of_children(cache: Path) -> None:
    code = """
    import signal
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    import torch
    assert wait_for(copies)
    """
    run(code, cache)


@pytest.mark.slow
def test_what_fails_in_it_stands_in_the_log(cache: Path) -> None:
    code = """
    import torch
    from torch_tenon.builder import standby
    # The copy has been made: another one, whose server fails.
    def serve(path, is_copy):
        raise OSError("no server today")
    import torch_tenon.builder.server as server
    server.serve = serve
    vars(torch.__spec__)["_initializing"] = True
    import socket, torch_tenon
    end = standby.stand_by(torch_tenon.target())
    log = pathlib.Path(os.environ["TENON_CACHE_DIR"] + "-log")
    with socket.socket(fileno=end) as order:
        order.send(b"\\0".join([b"nowhere", os.fsencode(log)]))
    assert wait_for(lambda: log.exists() and "no server today" in log.read_text())
    """
    run(code, cache)


@pytest.mark.slow
def test_where_it_is_gone_a_command_starts_the_builder(cache: Path) -> None:
    code = """
    import signal, torch
    assert wait_for(copies)
    [waiting] = copies()
    os.kill(waiting, signal.SIGKILL)
    assert wait_for(lambda: not copies())
    """
    try:
        run(code + PLAN, cache, TENON_EXECUTE="compiled")
        assert len(list(cache.glob("plans/*.plan"))) > 0
    finally:
        kill_builders(cache)


@pytest.mark.slow
def test_it_has_nothing_open_of_the_program(cache: Path) -> None:
    code = """
    kept = open(os.environ["TENON_CACHE_DIR"] + "-file", "w")
    read, write = os.pipe()
    import torch
    """
    ends = """
    def files(stat, given):
        found = set()
        for each in given:
            try:
                status = stat(each)
            except FileNotFoundError:
                continue  # which it has closed meanwhile
            found.add((status.st_dev, status.st_ino))
        return found

    [lock] = pathlib.Path(os.environ["TENON_CACHE_DIR"]).glob("builder-*.lock")
    fds = f"/proc/{int(lock.read_text())}/fd"
    log = files(os.stat, [lock.with_suffix(".log")])
    assert len(log) == 1 and files(os.stat, [f"{fds}/1"]) == files(os.stat, [f"{fds}/2"]) == log
    theirs = files(os.stat, [f"{fds}/{n}" for n in os.listdir(fds)])
    assert len(theirs) > 3
    assert not theirs & files(os.fstat, (1, 2, kept.fileno(), read))
    """
    try:
        run(code + PLAN + ends, cache, TENON_EXECUTE="compiled")
    finally:
        kill_builders(cache)


@pytest.mark.slow
@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "why, before, environment",
    [
        ("nobody makes plans", "", {"TENON_BUILDER": "off"}),
        ("plans are made here", "", {"TENON_BUILDER": "thread"}),
        ("no plan is kept", "", {"TENON_PLAN_FILES": "0"}),
        ("no plan is run", "", {"TENON_EXECUTE": "reference"}),
        (
            "a thread may hold a lock",
            "import threading as t; x = t.Timer(600, id); x.daemon = True; x.start()",
            {},
        ),
        ("a driver is open", "", {"TENON_TARGET": fresh_process.REMOTE_TARGET}),
        ("the program has much of its own", "held = b'1' * (1 << 30)", {}),
        ("PyTorch was there before", "os.environ['TORCH_DEVICE_BACKEND_AUTOLOAD'] = '0'", {}),
    ],
)
def test_none_stands_by_where(
    why: str, before: str, environment: dict[str, str], cache: Path
) -> None:
    code = f"""
    {before}
    import torch, torch_tenon
    torch.zeros(1, device="tenon")
    time.sleep(0.3)
    assert not copies(), {why!r}
    """
    run(code, cache, **{"TENON_EXECUTE": "auto", **environment})


@pytest.mark.slow
def test_a_program_without_tensors_of_the_device_leaves_nothing(cache: Path) -> None:
    run("\n    import torch\n    torch.zeros(3).sum().item()\n", cache)
    assert not cache.exists()


SHARED = """
    def shared():
        lines = pathlib.Path("/proc/self/smaps_rollup").read_text().splitlines()
        [line] = (line for line in lines if line.startswith("Shared_Dirty:"))
        return int(line.split()[1]) >> 10  # MiB
"""


@pytest.mark.slow
def test_the_builder_shares_no_memory_that_the_program_writes_at_its_end(cache: Path) -> None:
    code = """
    import torch
    assert wait_for(copies)
    before = shared()
    """
    alone = """
    assert wait_for(lambda: list(pathlib.Path(os.environ["TENON_CACHE_DIR"]).glob("plans/*.plan")))
    assert before > 50, before
    # It copies once nobody waits for a plan.
    assert wait_for(lambda: shared() < before / 10), (before, shared())
    """
    try:
        run(SHARED + code + PLAN + alone, cache, TENON_EXECUTE="compiled")
    finally:
        kill_builders(cache)


@pytest.mark.slow
def test_one_that_is_not_wanted_ends_before_the_interpreter_does(cache: Path) -> None:
    code = """
    import atexit
    # What is registered first comes last, after what the device does.
    atexit.register(lambda: print(*(["kept"] if not wait_for(lambda: not copies()) else ["gone"])))
    import torch
    assert wait_for(copies)
    """
    assert run(code.replace("120", "20"), cache).split() == ["gone"]
