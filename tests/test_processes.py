"""Workers, forked and spawned processes, and the end of a process."""

import os
import re
import signal
import sys
from pathlib import Path

import pytest
import torch
from fresh_process import output, run

import torch_tenon
from torch_tenon import _C
from torch_tenon.forked import LockOfProcess
from torch_tenon.pytorch import process


class OnTheDevice(torch.utils.data.Dataset):
    """Tensors of the device, made in a worker."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(float(index), device="tenon")


class BeyondTheEnd(torch.utils.data.Dataset):
    """An error that comes when the result is looked at: where the worker sends it."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> torch.Tensor:
        table = torch.arange(3, device="tenon")
        return table[torch.tensor([5], device="tenon")]


class Squares(torch.utils.data.Dataset):
    """The squares of 0 to 11; computed on the device, where `on_device`."""

    def __init__(self, on_device: bool) -> None:
        self.on_device = on_device

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.on_device:
            return (torch.tensor(float(index), device="tenon") ** 2).cpu()
        return torch.tensor(float(index)) ** 2


@pytest.mark.slow
@pytest.mark.parametrize("context", ["fork", "spawn"])
@pytest.mark.parametrize("on_device", [False, True])
def test_a_loader_with_workers(context: str, on_device: bool) -> None:
    torch.ones(3, device="tenon").requires_grad_().sum().backward()
    loader = torch.utils.data.DataLoader(
        Squares(on_device),
        batch_size=5,
        num_workers=1 if context == "spawn" else 2,
        multiprocessing_context=context,
        pin_memory=True,
        timeout=200,
    )
    seen = []
    for batch in loader:
        assert batch.is_pinned()
        seen += batch.to("tenon", non_blocking=True).tolist()
    assert seen == [float(i * i) for i in range(12)]


@pytest.mark.slow
@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_a_worker_that_sends_tensors_of_the_device(context: str) -> None:
    loader = torch.utils.data.DataLoader(
        OnTheDevice(),
        batch_size=5,
        num_workers=1 if context == "spawn" else 2,
        multiprocessing_context=context,
        timeout=200,
    )
    if not torch_tenon.target().host_memory:
        with pytest.raises(RuntimeError, match="a tensor of tenon:0 cannot be sent"):
            list(loader)
        return
    batches = list(loader)
    assert {batch.device.type for batch in batches} == {"tenon"}
    assert torch.cat(batches).tolist() == [float(index) for index in range(12)]


def test_an_error_of_a_tensor_that_a_worker_sends_is_raised() -> None:
    loader = torch.utils.data.DataLoader(
        BeyondTheEnd(), batch_size=None, num_workers=1, multiprocessing_context="fork", timeout=200
    )
    with pytest.raises((IndexError, RuntimeError), match=r"index 5 is out of|cannot be sent"):
        list(loader)


PREAMBLE = """
import multiprocessing, os, sys, torch
import torch.multiprocessing as mp

def forward(queue=None):
    x = torch.arange(512.0 * 512, device="tenon").view(512, 512)
    y = (torch.nn.functional.softmax(x @ x.t() / 1e9, 1) + torch.rand_like(x) * 0).sum().item()
    assert abs(y - 512) < 1e-2, y
    assert torch.tenon.memory_allocated() > 0 and str(x[0, 0]) != ""
    if queue is not None:
        queue.put(round(y))

def backward(queue=None):
    x = torch.ones(64, 64, device="tenon", requires_grad=True)
    (x @ x).sum().backward()
    assert x.grad.sum().item() == 64 * 64 * 128
    if queue is not None:
        queue.put("done")

def expecting_an_error(queue):
    try:
        backward()
    except RuntimeError as error:
        queue.put(str(error))
    else:
        queue.put("no error")

def child(method, work):
    context = mp.get_context(method)
    queue = context.Queue()
    process = context.Process(target=work, args=(queue,))
    process.start()
    print(queue.get(timeout=200))
    process.join(200)
    assert process.exitcode == 0, process.exitcode
"""


def in_main(code: str) -> str:
    lines = "\n".join(f"    {line}" for line in code.strip().splitlines())
    return f"{PREAMBLE}\nif __name__ == '__main__':\n{lines}\n"


@pytest.fixture
def script(tmp_path):
    """Runs a script from a file, as spawned processes need it, and returns what it printed."""

    def run_script(code: str, **environment: str | None) -> str:
        path = tmp_path / "script.py"
        path.write_text(in_main(code))
        return output(
            "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], "
            "run_name='__main__')",
            str(path),
            **environment,
        )

    return run_script


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="fork")
def test_a_forked_child_uses_the_device(script) -> None:
    # The parent has used the threads of OpenMP, of autograd and the device's memory.
    code = """
x = torch.ones(100, device="tenon")
forward()
child("fork", forward)
backward()
child("fork", forward)
child("fork", expecting_an_error)
process = os.fork()
if process == 0:
    x.add_(1)
    assert x.sum().item() == 200
    forward()
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0
assert x.sum().item() == 100
backward()
"""
    first, second, error = script(code).splitlines()
    assert first == second == "512"
    assert "Unable to handle autograd's threading in combination with fork" in error


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.skipif(sys.platform != "linux", reason="fork")
@pytest.mark.parametrize("mode", ["auto", "compiled"])
@pytest.mark.parametrize(
    "busy", [("windows", "new_windows"), ("backward", "memory"), ("pinned", "random")]
)
def test_a_fork_while_other_threads_use_the_device(busy: tuple, mode: str) -> None:
    """The child works, or says to spawn; it never waits for a lock that nobody will open."""
    code = """
        import itertools, os, signal, sys, threading, torch
        stop = threading.Event()
        errors = []

        def windows(x, turn):
            ((x * 2 + turn).sin() @ x).cpu()

        def new_windows(x, turn):
            y = torch.ones(turn % 50 + 2, device="tenon")
            ((y * 2).cos() + turn % 7).sum().item()

        def backward(x, turn):
            leaf = x.clone().requires_grad_()
            (leaf @ leaf).sum().backward()
            leaf.grad.cpu()

        def memory(x, turn):
            kept = [torch.empty(1 << (10 + turn % 11), device="tenon") for _ in range(4)]
            torch.tenon.empty_cache()

        def pinned(x, turn):
            for n in range(50):
                assert torch.empty(n + 1, pin_memory=True).is_pinned()

        def random(x, turn):
            for n in range(20):
                torch.rand(n + 1, device="tenon")

        def loop(work):
            try:
                x = torch.rand(60, 60, device="tenon")
                for turn in itertools.count():
                    work(x, turn)
                    if stop.is_set():
                        return
            except BaseException as error:
                errors.append(error)

        def child_works(pending, number):
            ok = pending.tolist() == [2.0 * i + number for i in range(10)]
            x = torch.rand(20, 20).to("tenon")
            ok = ok and torch.equal((x + 1).cpu(), x.cpu() + 1)
            ok = ok and torch.empty(3, pin_memory=True).is_pinned()
            ok = ok and torch.rand(3, device="tenon").sum().item() > 0
            torch.tenon.synchronize()
            return ok

        works = [globals()[name] for name in sys.argv[1:]]
        threads = [threading.Thread(target=loop, args=(work,)) for work in works]
        mine = torch.arange(10.0, device="tenon")
        # PyTorch registers an op's handle, at the first use of that op, under a lock of the C
        # library that a fork does not take. No other library can mend that.
        for work in works:
            work(torch.rand(60, 60, device="tenon"), 0)
        assert child_works(mine * 2, 0)
        for thread in threads:
            thread.start()
        for number in range(10):
            pending = mine * 2 + number
            child = os.fork()
            if child == 0:
                signal.alarm(100)
                try:
                    ok = child_works(pending, number)
                except RuntimeError as error:
                    ok = "spawn" in str(error)
                os._exit(0 if ok else 3)
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            if status != 0:
                print("child", number, "ended with", status, flush=True)
                os._exit(1)
            assert pending.tolist() == [2.0 * i + number for i in range(10)]
        stop.set()
        for thread in threads:
            thread.join(100)
        assert not errors, errors
        print("right")
    """
    assert output(code, *busy, TENON_EXECUTE=mode) == "right"


@pytest.mark.slow
def test_a_fork_takes_each_lock_of_the_core_or_it_says_why_not() -> None:
    """One that a fork leaves to a thread which the child does not have is waited for without end.

    A comment beside a lock that no fork takes says why that does not happen.
    """
    root = Path(__file__).parent.parent
    targets = root / "torch_tenon" / "targets"
    folders = [root / "csrc", *targets.glob("*/csrc"), *targets.glob("*/native")]
    mutex = r"std::(?:shared_|recursive_|timed_)*(?:mutex|once_flag)"
    declared = re.compile(mutex + r"(?: (\w+);|>? ?\()")
    found, taken = [], 0
    for path in sorted(p for folder in folders for p in folder.rglob("*.[ch]*")):
        text = path.read_text()
        taken += len(re.findall(r"MutexAtFork<ForkOrder::\w+> \w+;|OnlyOne<MutexAtFork<", text))
        assert "call_once" not in text, f"{path} waits for a thread that a child may not have"
        sources = text + "".join(
            p.read_text() for p in path.parent.glob(f"{path.stem}.cpp") if p != path
        )
        lines = text.splitlines()
        for number, line in enumerate(lines):
            match = declared.search(line)
            if match is None or line.lstrip().startswith("//"):
                continue
            name = match[1] or "made"
            beside = " ".join(lines[max(number - 2, 0) : number + 1])
            if re.search(rf"take_at_fork\(\*?(?:\w+(?:->|\.))?{name}\b", sources):
                taken += 1
            elif not re.search(r"[Nn]ot of forks|the fork takes", beside):
                found.append(f"{path.relative_to(root)}:{number + 1}: {line.strip()}")
    assert not found and taken >= 12, (taken, found)


def test_a_fork_before_which_something_raises_lets_go_of_nothing(
    monkeypatch: pytest.MonkeyPatch, no_plan_in_work: None
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(process._forking, "alone", True, raising=False)  # of the fork before
    monkeypatch.setattr(_C, "commit_all", interrupt)
    with process.making_plans:  # by the thread that makes plans
        with pytest.raises(KeyboardInterrupt):  # Python prints it, and forks
            process._before_fork()
        process._after_fork_in_parent()
        assert process.making_plans.locked()


def test_backward_in_a_forked_child_whose_parent_ran_none(script) -> None:
    assert script('forward()\nchild("fork", backward)') == "done"


@pytest.mark.slow
def test_a_spawned_child(script) -> None:
    assert script('backward()\nchild("spawn", forward)\nchild("spawn", backward)') == "512\ndone"


REPETITIONS = 3  # of each ending
ENDINGS = {
    "backward": "loss.backward()",
    "backward_in_a_thread": "threading.Thread(target=loss.backward).start()",
    "graph_alive": "sys.kept = loss",
    "cycle": "loss.me = [loss]; loss.register_hook(lambda g: loss.me[0] * 0); loss.backward()",
    "exit_in_the_middle": "loss.backward(); sys.exit(0)",
}


@pytest.mark.slow
@pytest.mark.parametrize("ending", ENDINGS)
def test_the_end_of_a_process_is_clean(ending: str) -> None:
    code = f"""
        import os, subprocess, sys
        import torch
        # One import for all repetitions: each forks and ends as a process of its own does.
        for number in range({REPETITIONS}):
            child = os.fork()
            if child == 0:
                import threading
                x = torch.randn(64, 64, device="tenon", requires_grad=True)
                class Kept(torch.autograd.Function):
                    @staticmethod
                    def forward(ctx, x):
                        ctx.kept = [x.detach(), object()]
                        return x * 2
                    @staticmethod
                    def backward(ctx, grad):
                        return grad * 2
                loss = (Kept.apply(x) @ x).exp().sum()
                {ENDINGS[ending]}
                sys.exit(0)
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            assert status == 0, status
    """
    done = run(code)
    assert done.returncode == 0, done.stderr
    assert "Error" not in done.stderr and "terminate" not in done.stderr, done.stderr


def test_an_interrupted_program_reports_its_own_error() -> None:
    done = run(
        "import torch\nx = torch.ones(2, device='tenon', requires_grad=True)\n"
        "(x * 2).sum().backward()\nraise SystemExit(7)"
    )
    assert done.returncode == 7 and done.stderr == ""


def test_a_lock_that_a_thread_holds_is_open_in_a_forked_child() -> None:
    lock = LockOfProcess()
    with lock:
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            with lock:
                os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with lock:  # what the child did is nothing to the parent
        pass


def test_each_lock_of_the_package_is_open_in_a_child_or_it_says_why_not() -> None:
    root = Path(__file__).parent.parent / "torch_tenon"
    found = [
        f"{path.relative_to(root)}:{number}: {line.strip()}"
        for path in sorted(root.rglob("*.py"))
        if path.parts[-2] != "starts"  # sources for others to fill in
        for text in [path.read_text()]
        for number, line in enumerate(text.splitlines(), 1)
        if re.search(r"threading\.R?Lock\(\)", line)
        and "not of forks" not in line
        and "os.register_at_fork(" not in text
    ]
    assert not found, "a `LockOfProcess` is open in a forked child:\n" + "\n".join(found)
