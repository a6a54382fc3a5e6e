"""What goes wrong around the engine: compilers, caches, memory, indices, processes.

In each case the device works on, and values are right or an error says what was lost. Every case
is a process of its own, with a time limit: a hang is a failure.
"""

import os
import stat
import textwrap
from pathlib import Path

import pytest
from fresh_process import output, run
from waiting import has_ended, until

# A chain that is recorded, comes again, and so gets a plan; `settle` waits until that is made.
PREAMBLE = """
import time, torch
from torch_tenon import _C
from torch_tenon.builder.counts import plan_counts

def step(x):
    y = (x * 2 + 1).sin()
    z = torch.softmax(y, -1) - y.mean()
    z[:, :2].mul_(3)
    return z

def settle():
    _C.commit_all()
    end = time.monotonic() + 200
    while plan_counts()["waiting"]:
        assert time.monotonic() < end, "a plan is never made"
        time.sleep(0.005)

def work(times=5):
    torch.manual_seed(1)
    for _ in range(times):
        x = torch.rand(16, 24)
        got = step(x.to("tenon"))
        torch.testing.assert_close(got.cpu(), step(x))
        settle()
"""


def _script(path: Path, body: str) -> str:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("compiler", "mode"),
    [
        ("echo 'no such instruction' >&2; exit 1", "auto"),
        ("kill -9 $$", "compiled"),
        ("exit 0", "auto"),
    ],
)
def test_a_compiler_that_fails(compiler: str, mode: str, tmp_path: Path) -> None:
    code = PREAMBLE + "work(); c = plan_counts(); print(c['hits'], c['failed'] > 0)"
    done = output(
        code,
        TENON_CC=_script(tmp_path / "cc", compiler),
        TENON_CACHE_DIR=str(tmp_path / "cache"),
        TENON_EXECUTE=mode,
    )
    assert done == "0 True"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hidden", "builder", "expected"),
    [
        ("", "process", "True False"),
        ("import sys; sys.modules['ziglang'] = None", "thread", "False True"),
    ],
)
def test_no_compiler(hidden: str, builder: str, expected: str, tmp_path: Path) -> None:
    """The one of a package serves where the system has none."""
    code = PREAMBLE + "work(); c = plan_counts(); print(c['hits'] > 0, c['failed'] > 0)"
    (tmp_path / "empty").mkdir()
    done = output(
        hidden + code,
        TENON_CC=None,
        PATH=str(tmp_path / "empty"),
        TENON_CACHE_DIR=str(tmp_path / "cache"),
        TENON_BUILDER=builder,
    )
    assert done == expected


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["cut", "other"])
def test_a_damaged_cache(damage: str, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    code = PREAMBLE + "work(); c = plan_counts(); print(c['hits'] > 0, c['failed'])"
    assert output(code, TENON_CACHE_DIR=str(cache)) == "True 0"
    files = [p for p in cache.rglob("*") if p.is_file()]
    assert any(p.suffix == ".so" for p in files)
    for p in files:
        data = p.read_bytes()
        p.unlink()  # it may be mapped: writing into it is not what is tested
        changed = {"cut": data[: len(data) // 2], "other": b"\x7fELF" + data[::-1]}
        p.write_bytes(changed[damage])
    assert output(code, TENON_CACHE_DIR=str(cache)) == "True 0"


@pytest.mark.slow
def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    code = PREAMBLE + "work(); print('right')"
    assert output(code, TENON_CACHE_DIR=str(file / "cache")) == "right"


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["reference", "auto", "compiled"])
def test_out_of_memory_within_a_window(mode: str) -> None:
    code = """
    work()
    torch.tenon.set_memory_limit(8 << 20)
    for _ in range(4):
        x = torch.rand(1 << 18)
        a = x.to("tenon")
        b = a * 2
        try:
            kept = [b + i for i in range(20)]
            raise SystemExit("there was memory for all of it")
        except torch.OutOfMemoryError:
            pass
        torch.testing.assert_close(b.cpu(), x * 2)
        torch.testing.assert_close((b - a).cpu(), x)
        del a, b
    torch.tenon.set_memory_limit(None)
    work()
    print("right")
    """
    assert _run(code, TENON_EXECUTE=mode) == "right"


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["auto", "compiled"])
def test_no_memory_for_a_plan_s_temporaries(mode: str) -> None:
    # A sort is a call: what it sorts needs memory that eager code had given back by then.
    code = """
    def chain(x):
        return ((x * 2).sort()[0] + (x * 3).sort()[0]).sum()

    x = torch.rand(1 << 18)
    a = x.to("tenon")
    for _ in range(4):
        chain(a).cpu()
        settle()
    lost = 0
    for megabytes in range(2, 12):  # one is the argument's
        torch.tenon.empty_cache()
        torch.tenon.set_memory_limit(megabytes << 20)
        try:
            torch.testing.assert_close(chain(a).cpu(), chain(x))
        except torch.OutOfMemoryError:
            lost += 1
        torch.testing.assert_close((a[:4] + 1).cpu(), x[:4] + 1)
    torch.tenon.set_memory_limit(None)
    torch.testing.assert_close(chain(a).cpu(), chain(x))
    print(lost < 10)
    """
    assert _run(code, TENON_EXECUTE=mode) == "True"


def _run(code: str, **environment: str) -> str:
    return output(PREAMBLE + textwrap.dedent(code), **environment)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["reference", "auto", "compiled"])
def test_an_exception_in_a_custom_op(mode: str) -> None:
    code = """
    @torch.library.custom_op("faults::halve", mutates_args=())
    def halve(x: torch.Tensor) -> torch.Tensor:
        if x.min() < 0:
            raise ValueError("no negative numbers")
        return x / 2

    @halve.register_fake
    def _(x):
        return torch.empty_like(x)

    for _ in range(4):
        x = torch.rand(7)
        a = x.to("tenon")
        before = a + 1
        torch.testing.assert_close(halve(a).cpu(), x / 2)
        try:
            halve(-a - 1).cpu()
            raise SystemExit("no error")
        except ValueError as error:
            assert "no negative numbers" in str(error)
        torch.testing.assert_close(before.cpu(), x + 1)
    work()
    print("right")
    """
    assert _run(code, TENON_EXECUTE=mode) == "right"


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["reference", "auto", "compiled"])
def test_an_index_out_of_range(mode: str) -> None:
    code = """
    ops = [
        lambda x, i: x[i],
        lambda x, i: x.gather(0, i[:, None].expand(-1, 3)),
        lambda x, i: torch.nn.functional.embedding(i, x),
        lambda x, i: x.index_select(0, i),
    ]
    for turn, compute in [(turn, op) for turn in range(5) for op in ops]:
        x, good = torch.rand(9, 3), torch.tensor([8, 0, turn])
        a = x.to("tenon")
        got = compute(a, good.to("tenon")) * 2
        torch.testing.assert_close(got.cpu(), compute(x, good) * 2)
        settle()
        for bad in (9, 1 << 40):
            before = a + turn
            try:
                (compute(a, torch.tensor([8, bad, 0]).to("tenon")) * 2).cpu()
                raise SystemExit("no error")
            except (IndexError, RuntimeError) as error:
                assert "index" in str(error) and "out of" in str(error), error
            torch.testing.assert_close(a.cpu(), x)
        torch.testing.assert_close((a + turn).cpu(), x + turn)
    work()
    print("right")
    """
    assert _run(code, TENON_EXECUTE=mode) == "right"


def test_a_late_error_names_the_op() -> None:
    code = """
    def taken(last):
        return torch.take(torch.rand(5).to("tenon"), torch.tensor([0, last]).to("tenon")) + 1

    for last in (3, 4):
        taken(last)
    _C.commit_all()
    late = taken(5)  # recorded: its windows are new, so they run by reference
    try:
        late.cpu()
    except IndexError as error:
        print(error)
    """
    assert "aten::take, recorded before" in _run(code, TENON_EXECUTE="auto")


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["auto", "compiled"])
def test_fork_with_a_window_open(mode: str) -> None:
    code = """
    import os, signal
    work()
    x = torch.rand(16, 24)
    pending = step(x.to("tenon"))
    child = os.fork()
    if child == 0:
        signal.alarm(200)
        torch.testing.assert_close(pending.cpu(), step(x))
        torch.testing.assert_close((pending * 2).cpu(), step(x) * 2)
        work()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    torch.testing.assert_close(pending.cpu(), step(x))
    work()
    print("right")
    """
    assert _run(code, TENON_EXECUTE=mode) == "right"


@pytest.mark.slow
def test_fork_while_plans_are_made(tmp_path: Path) -> None:
    code = """
    import os, signal
    for size in range(4, 22, 3):
        for _ in range(3):
            x = torch.rand(2, size, device="tenon")
            step(x)
            _C.commit_all()
        child = os.fork()
        if child == 0:
            signal.alarm(200)
            work(2)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    work()
    print("right")
    """
    assert _run(code, TENON_CACHE_DIR=str(tmp_path / "cache")) == "right"


@pytest.mark.slow
@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("mode", "end", "status"),
    [
        ("auto", "", 0),
        ("compiled", "", 0),
        ("reference", "", 0),
        ("auto", "import sys; sys.exit(3)", 3),
        ("auto", "raise ValueError('over')", 1),
        ("auto", "import os; os._exit(5)", 5),
    ],
)
def test_exit_with_work_pending(mode: str, end: str, status: int) -> None:
    code = PREAMBLE + f"work()\nkept = step(torch.rand(16, 24, device='tenon'))\n{end}\n"
    done = run(code, TENON_EXECUTE=mode)
    assert done.returncode == status, done.stderr
    assert "Fatal" not in done.stderr


@pytest.mark.slow
def test_exit_while_plans_are_made(tmp_path: Path) -> None:
    # Threads that still record are left out: they abort on PyTorch's CPU as well.
    code = """
    for size in range(4, 16):
        for _ in range(3):
            step(torch.rand(3, size, device="tenon").requires_grad_() * 1).sum().backward()
            _C.commit_all()
    """
    code = PREAMBLE + textwrap.dedent(code)
    done = run(code, TENON_CACHE_DIR=str(tmp_path / "cache"))
    assert done.returncode == 0, f"{done.returncode}\n{done.stderr}"
    assert "Fatal" not in done.stderr and "terminate" not in done.stderr, done.stderr


@pytest.mark.slow
def test_exit_while_the_compiler_never_ends(tmp_path: Path) -> None:
    slow = _script(tmp_path / "cc", f"echo $$ >> {tmp_path}/started; sleep 1000; exit 1")
    code = """
    while not os.path.exists(STARTED):
        kept = step(torch.rand(3, 5, device="tenon"))
        _C.commit_all()
    """
    code = PREAMBLE + "import os\n" + textwrap.dedent(code)
    code = code.replace("STARTED", repr(str(tmp_path / "started")))
    cache = str(tmp_path / "cache")
    done = run(code, TENON_CACHE_DIR=cache, TENON_CC=slow)
    assert done.returncode == 0 and done.stderr == ""
    for line in (tmp_path / "started").read_text().split():
        until(lambda pid=int(line): has_ended(pid))  # killed just now


@pytest.mark.slow
def test_a_process_killed_while_it_compiles(tmp_path: Path) -> None:
    cache = str(tmp_path / "cache")
    slow = _script(tmp_path / "cc", 'sleep 0.3; exec cc "$@"')
    code = """
    import os, signal, threading
    threading.Timer(DELAY, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
    while True:
        work(2)
        for size in range(4, 30):
            step(torch.rand(3, size, device="tenon"))
            _C.commit_all()
    """
    for delay in (0.4, 1.0):
        killed = PREAMBLE + textwrap.dedent(code.replace("DELAY", str(delay)))
        done = run(killed, TENON_CACHE_DIR=cache, TENON_CC=slow)
        assert done.returncode == -9, done.stderr
    found = output(
        PREAMBLE + "work(); print(plan_counts()['failed'])",
        TENON_CACHE_DIR=cache,
        TENON_CC=slow,
    )
    assert found == "0"
    assert os.path.isdir(cache)
