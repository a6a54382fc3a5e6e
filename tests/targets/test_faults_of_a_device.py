"""A fault of the device reaches whoever reads what depends on it, and nobody else."""

import pytest
import torch
from fresh_process import REMOTE_TARGET, TESTS, output
from needs import opencl

import torch_tenon

FAULTY_TARGET = f"{TESTS / 'targets' / 'faulty.py'}:FaultyTarget"
THREADED_TARGET = f"{TESTS / 'targets' / 'threaded.py'}:ThreadedTarget"


def run_there(call: str, target: str = FAULTY_TARGET, **settings: str) -> str:
    code = f"""
        import sys
        sys.path.insert(0, "targets")
        from test_faults_of_a_device import *
        print({call})
    """
    return output(code, TENON_TARGET=target, **settings)


def queue_of_device():
    return torch_tenon.target().queue(0)


def assert_lost(x: torch.Tensor, text: str = "lost its power") -> None:
    for _ in range(2):  # as often as it is read
        with pytest.raises(RuntimeError, match=text):
            x.cpu()


def settle() -> None:
    """All that was submitted is over, and nobody has read it."""
    torch.tenon.current_stream().synchronize()


def a_window_is_lost(says_so: str) -> str:
    queue = queue_of_device()
    x = torch.arange(6.0).to("tenon")
    for turn in range(7):
        apart = torch.zeros(6, device="tenon")
        settle()
        kept = x * (3 + turn)
        torch_tenon.commit()
        loses = turn > 2  # what runs for the first time runs at once
        queue.loses = says_so if loses else ""
        lost = x * 2 + turn
        apart.add_(1)
        torch_tenon.commit()
        assert queue.loses == ""
        after = lost + 1  # of a window that itself runs well
        fine = x - turn
        torch_tenon.commit()
        if turn % 2:  # what the device failed with is not forgotten once somebody has looked
            while not torch.tenon.current_stream().query():
                pass
            (x + 1).cpu()
        assert kept.tolist() == [(3.0 + turn) * k for k in range(6)]
        assert fine.tolist() == [float(k - turn) for k in range(6)]
        for each in (lost, after, apart, after * 2) if loses else ():
            assert_lost(each)
        apart.fill_(0)  # replaces it as a whole
        assert apart.tolist() == [0.0] * 6
    for _ in range(3):
        torch.tenon.synchronize()
        lost = x * 2 + 1
    torch.tenon.synchronize()
    queue.loses = says_so
    lost = x * 2 + 1
    with pytest.raises(RuntimeError, match="lost its power"):
        torch.tenon.synchronize()
    assert_lost(lost)
    return "told"


@pytest.mark.parametrize("says_so", ["wait", "done", "both"])
def test_a_window_that_is_lost(says_so: str) -> None:
    assert run_there(f"a_window_is_lost({says_so!r})", TENON_EXECUTE="compiled") == "told"


def copies_are_lost(says_so: str) -> str:
    queue = queue_of_device()
    for turn in range(3):
        assert (torch.arange(5.0).to("tenon") + turn).cpu() is not None
    for turn in range(3):
        settle()
        queue.loses = says_so
        x = torch.arange(5.0).to("tenon")
        y = x + turn
        assert_lost(x)
        assert_lost(y)
        z = torch.arange(5.0).to("tenon")
        settle()
        queue.loses = says_so
        with pytest.raises(RuntimeError, match="lost its power"):
            z.cpu()
        assert z.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
        graph = torch.compile(lambda t: t * 2 + 1)
        graph(z)
        settle()
        queue.loses = says_so
        with pytest.raises(RuntimeError, match="lost its power"):
            graph(z)
        assert graph(z).tolist() == [1.0, 3.0, 5.0, 7.0, 9.0]
    return "told"


@pytest.mark.slow
@pytest.mark.parametrize("says_so", ["wait", "done"])
def test_copies_and_graphs_that_are_lost(says_so: str) -> None:
    assert run_there(f"copies_are_lost({says_so!r})", TENON_EXECUTE="compiled") == "told"


def an_event_tells(says_so: str) -> str:
    queue = queue_of_device()
    x = torch.arange(5.0).to("tenon")
    event, before = torch.Event("tenon"), torch.Event("tenon")
    for turn in range(6):
        fine = x + turn
        before.record()
        queue.loses = says_so if turn > 2 else ""
        lost = x * 2 + turn
        event.record()
        before.synchronize()  # of what was well
        if turn > 2:
            with pytest.raises(RuntimeError, match="lost its power"):
                event.synchronize()
            assert_lost(lost)
        event.synchronize()  # somebody has seen it
        assert event.query() and fine.tolist() == [float(k + turn) for k in range(5)]
    queue.loses = says_so
    uploaded = torch.arange(7.0).to("tenon")
    event.record()
    with pytest.raises(RuntimeError, match="lost its power"):
        event.synchronize()
    assert_lost(uploaded)
    # What replaces all of it while it is lost is well.
    lost = torch.zeros(5, device="tenon")
    for turn in range(6):
        settle()
        queue.loses, queue.pause = says_so if turn > 2 else "", 0.02
        lost.add_(x)
        torch_tenon.commit()
        lost.copy_(torch.full((5,), 3.0))
        read = lost + 1
        assert lost.tolist() == [3.0] * 5 and read.tolist() == [4.0] * 5
    return "told"


@pytest.mark.slow
@pytest.mark.parametrize("says_so", ["wait", "done"])
def test_an_event_tells_what_the_device_failed_with(says_so: str) -> None:
    assert run_there(f"an_event_tells({says_so!r})", TENON_EXECUTE="compiled") == "told"


def a_window_raises_while_earlier_ones_run() -> str:
    queue = queue_of_device()
    table = torch.arange(12.0).view(4, 3).to("tenon")
    bad, good = (torch.tensor([0, k]).to("tenon") for k in (9, 1))

    def chosen(index: torch.Tensor) -> torch.Tensor:
        made = table.index_select(0, index) + 1
        torch_tenon.commit()
        return made

    assert chosen(good).tolist() == [[1, 2, 3], [4, 5, 6]]
    x = torch.arange(4.0).to("tenon")
    assert (x.sin() @ x).item() is not None
    for _ in range(3):
        settle()
        queue.pause = 0.05
        wrong, right = chosen(bad), chosen(good)
        queue.left = 1
        lost = x.sin() @ x
        torch_tenon.commit()
        queue.pause, queue.left = 0.0, 0
        # The window before it is not over, and its error is not known yet.
        with pytest.raises(IndexError, match=r"out of (bounds|range)"):
            wrong.cpu()
        assert right.tolist() == [[1, 2, 3], [4, 5, 6]]
        assert_lost(lost, "takes no more kernels")
    return "in order"


@pytest.mark.slow
def test_a_window_that_raises_waits_for_those_before_it() -> None:
    call = "a_window_raises_while_earlier_ones_run()"
    assert run_there(call, TENON_EXECUTE="compiled") == "in order"


def commands_fail() -> str:
    queue = queue_of_device()
    x = torch.arange(4.0).to("tenon")
    for turn in range(3):
        assert (x * 2 + turn).cpu()[0] == turn
    errors = ValueError("no such unit"), SystemExit(3), KeyboardInterrupt(), MemoryError("full")
    for error, text in zip(errors, ("no such unit", "SystemExit", "Keyboard", "full"), strict=True):
        settle()
        queue.fails = error
        lost = x * 2
        torch_tenon.commit()
        fine = x * 3
        assert_lost_with(lost, text)
        assert_lost_with(lost + 1, text)
        assert fine.tolist() == [0.0, 3.0, 6.0, 9.0]
    return "told"


def assert_lost_with(x: torch.Tensor, text: str) -> None:
    with pytest.raises(Exception, match=text):
        x.cpu()


@pytest.mark.slow
def test_whatever_a_command_raises_in_the_queues_thread_is_told() -> None:
    assert run_there("commands_fail()", THREADED_TARGET, TENON_EXECUTE="compiled") == "told"


def times_of_events(commits: int) -> str:
    first, last = (torch.Event("tenon", enable_timing=True) for _ in range(2))
    x = torch.zeros(4, device="tenon")
    first.record()
    between = torch.Event("tenon")
    for _ in range(commits):
        x.add_(1)
        between.record()
    last.record()
    last.synchronize()
    took = first.elapsed_time(last)
    assert 0 < took < 60e3, took
    assert first.elapsed_time(last) == took and last.elapsed_time(first) == -took
    return "right"


@pytest.mark.parametrize("target", [REMOTE_TARGET, pytest.param("opencl", marks=opencl)])
def test_an_event_keeps_its_time_whatever_is_committed_later(target: str) -> None:
    """More commits than a queue could keep the times of."""
    assert run_there("times_of_events(5000)", target) == "right"
