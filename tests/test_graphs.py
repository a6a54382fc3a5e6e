"""Graphs: what is captured runs when it is replayed, and gives what the same calls give."""

import gc
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from against_cpu import assert_same, executing
from torch.accelerator import Graph
from torch.utils.checkpoint import checkpoint
from turns import in_thread
from waiting import TIMEOUT, Gate, until_asleep

from torch_tenon import _C

IS_CAPTURED = "cannot be part of a graph"


def filled(*shape: int) -> torch.Tensor:
    """Numbers of the host, as a tensor of the device that nothing is pending for."""
    return torch.arange(1.0, 1 + torch.Size(shape).numel()).reshape(shape).to("tenon")


def captured(calls: Callable[[], object]) -> Graph:
    graph = Graph()
    with torch.Stream("tenon"), graph:
        calls()
    return graph


@pytest.fixture(params=["auto", "compiled", "verify", "reference", "direct"])
def any_mode(request: pytest.FixtureRequest):
    with executing(request.param):
        yield


@pytest.mark.slow
@pytest.mark.usefixtures("any_mode", "nothing_leaked")
def test_nothing_runs_until_it_is_replayed() -> None:
    x = torch.zeros(2000, device="tenon")
    graph = captured(lambda: x.add_(1))
    assert x.sum().item() == 0
    for count in range(1, 4):
        graph.replay()
        assert x.tolist() == [count] * 2000


@pytest.mark.usefixtures("any_mode")
def test_a_replay_reads_what_its_inputs_hold_by_then() -> None:
    x, made = filled(3, 5), []
    graph = captured(lambda: made.append((x * 2).tanh().sum(1, keepdim=True) + x))
    for host in (torch.randn(3, 5), torch.ones(3, 5)):
        x.copy_(host)
        graph.replay()
        assert_same(made[0], (host * 2).tanh().sum(1, keepdim=True) + host, rtol=1e-6, atol=1e-6)


def test_results_stay_where_they_are() -> None:
    x, made = filled(64, 64), []
    graph = captured(lambda: made.extend((x + 1, x @ x)))
    graph.replay()
    addresses = [t.data_ptr() for t in made]
    for _ in range(3):
        x.mul_(0.5)
        graph.replay()
        assert [t.data_ptr() for t in made] == addresses
        assert_same(made[0], x.cpu() + 1)
        assert_same(made[1], x.cpu() @ x.cpu(), rtol=1e-4, atol=1e-4)


def test_memory_without_contents_may_be_written_between_replays() -> None:
    x = torch.empty(8, device="tenon")
    graph = captured(lambda: x.add_(1))
    x.fill_(4)
    graph.replay()
    assert x.tolist() == [5] * 8


@pytest.mark.slow
def test_a_training_step() -> None:
    def step_of(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> Callable[[], None]:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        def step() -> None:
            optimizer.zero_grad(set_to_none=False)
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()

        return step

    host = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.GELU(), torch.nn.Linear(16, 2))
    x, y = torch.randn(9, 6), torch.randn(9, 2)
    model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.GELU(), torch.nn.Linear(16, 2))
    model.load_state_dict(host.state_dict())
    on_host = step_of(host, x, y)
    on_device = step_of(model.to("tenon"), x.to("tenon"), y.to("tenon"))
    for step in (on_host, on_device):
        for _ in range(2):  # momentum has its buffers from then on
            step()
    graph = captured(on_device)
    for _ in range(5):
        graph.replay()
        on_host()
    for p, q in zip(model.parameters(), host.parameters(), strict=True):
        assert_same(p.detach(), q.detach(), rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("any_mode")
def test_random_numbers_are_drawn_at_each_replay() -> None:
    x = filled(1000)

    def calls() -> list[torch.Tensor]:
        return [torch.nn.functional.dropout(x, 0.5), torch.rand(7, device="tenon")]

    torch.manual_seed(3)
    expected = [[t.cpu() for t in calls()] for _ in range(3)]
    after = torch.tenon.get_rng_state()
    torch.manual_seed(3)
    made: list[torch.Tensor] = []
    graph = captured(lambda: made.extend(calls()))
    for numbers in expected:
        graph.replay()
        for found, right in zip(made, numbers, strict=True):
            assert_same(found, right)
    assert torch.tenon.get_rng_state().equal(after)


@pytest.mark.slow
def test_what_a_checkpoint_draws_again_is_what_it_drew() -> None:
    x = torch.ones(1000, device="tenon", requires_grad=True)
    made: list[torch.Tensor] = []

    def calls() -> None:
        y = checkpoint(lambda x: torch.nn.functional.dropout(x) * 3, x, use_reentrant=False)
        (gradient,) = torch.autograd.grad(y.sum(), x)
        made[:] = [y.detach(), gradient, torch.rand(5, device="tenon")]

    torch.manual_seed(3)
    expected = []
    for _ in range(3):
        calls()
        expected.append([t.cpu() for t in made])
    torch.manual_seed(3)
    graph = captured(calls)
    for numbers in expected:
        graph.replay()
        assert_same(made, numbers)
        assert_same(made[0] == 0, made[1].cpu() == 0)


@pytest.mark.slow
def test_numbers_that_others_draw_during_a_capture_are_not_drawn_again() -> None:
    drawn, made = [], []

    def calls() -> None:
        made.append(torch.rand(7, device="tenon"))
        drawn.append(in_thread(lambda: torch.rand(7, device="tenon").cpu()))
        with torch.Stream("tenon"):
            drawn.append(torch.rand(7, device="tenon"))

    graph = captured(calls)
    graph.replay()
    drawn += [made[0], torch.rand(7, device="tenon")]
    assert len({tuple(t.tolist()) for t in drawn}) == len(drawn)


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_leaked")
def test_more_calls_than_a_window_has() -> None:
    def calls(x: torch.Tensor) -> torch.Tensor:
        kept = []
        for k in range(300):
            x = (x * 3 + k) % 1009
            kept.append(x)
            x = kept[k // 2] + x  # some of these live for long
        return x

    x, made = torch.arange(16).to("tenon"), []
    graph = captured(lambda: made.append(calls(x)))
    for host in (torch.arange(16), torch.arange(3, 19)):
        x.copy_(host)
        graph.replay()
        assert_same(made[0], calls(host))


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_leaked")
def test_what_dies_within_a_graph_takes_no_memory() -> None:
    nbytes = 4 << 20
    x = torch.ones(nbytes // 4, device="tenon")
    with executing("compiled"):
        graph = captured(lambda: x.copy_(((x + 1) * 3).relu()))
        graph.replay()
        torch.tenon.reset_peak_memory_stats()
        before = torch.tenon.memory_allocated()
        graph.replay()
        assert torch.tenon.max_memory_allocated() < before + nbytes
    assert x[0].item() == 21


NO_PARTS: dict[str, Callable[[torch.Tensor], object]] = {
    "a value": lambda x: x.sum().item(),
    "a copy to the host": lambda x: x.cpu(),
    "a copy from the host": lambda x: x.copy_(torch.ones(4)),
    "a new tensor of the host's numbers": lambda x: torch.tensor([1.0, 2.0], device="tenon"),
    "a size that depends on values": lambda x: x.nonzero(),
    "synchronize": lambda x: torch.tenon.synchronize(),
    "another generator": lambda x: x.normal_(generator=torch.Generator("tenon")),
    "a seed": lambda x: torch.tenon.manual_seed(7),
    "a seed for all": lambda x: torch.manual_seed(0),
    "a state with another seed": lambda x: torch.tenon.set_rng_state(
        torch.Generator("tenon").manual_seed(7).get_state()
    ),
    "an earlier state": lambda x: torch.tenon.set_rng_state(EARLIER[0]),
    "a replay": lambda x: ANOTHER[0].replay(),
    "a sparse tensor": lambda x: x.to_sparse(),
}
ANOTHER: list[Graph] = []
EARLIER: list[torch.Tensor] = []


@pytest.mark.parametrize("part", NO_PARTS)
def test_what_cannot_be_part_of_one(part: str) -> None:
    other = filled(4)
    ANOTHER[:] = [captured(lambda: other.add_(1))]
    EARLIER[:] = [torch.tenon.get_rng_state()]
    x = filled(4) + 0 * torch.rand(4, device="tenon")
    torch.tenon.synchronize()
    graph = Graph()
    with pytest.raises(RuntimeError, match=IS_CAPTURED), torch.Stream("tenon"), graph:
        x.add_(1)
        NO_PARTS[part](x)
    assert x.tolist() == [1, 2, 3, 4]
    graph.replay()  # what came before is captured
    assert x.tolist() == [2, 3, 4, 5]
    ANOTHER.clear()


def test_another_thread_gets_an_error_for_what_is_captured_and_else_works() -> None:
    x, y = filled(4), filled(4)
    found: list[object] = []

    def other() -> None:
        found.append((y * 2).tolist())
        try:
            x.tolist()
        except RuntimeError as error:
            found.append(IS_CAPTURED in str(error))

    graph = Graph()
    with torch.Stream("tenon"), graph:
        x.add_(1)
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert found == [[2, 4, 6, 8], True]


def test_an_error_of_a_replay_is_raised_where_its_result_is_read() -> None:
    x, index, made = filled(4), torch.tensor([0, 3]).to("tenon"), []
    graph = captured(lambda: made.append(x[index] * 2))
    index.fill_(7)
    graph.replay()
    with pytest.raises(IndexError):
        made[0].tolist()
    index.fill_(1)
    graph.replay()
    assert made[0].tolist() == [4, 4]


def test_streams_say_whether_they_are_captured() -> None:
    stream, graph = torch.Stream("tenon"), Graph()
    assert not stream.is_capturing()
    with stream:
        with graph:
            assert stream.is_capturing() and torch.tenon.is_current_stream_capturing()
            assert not torch.Stream("tenon").is_capturing()
        assert not torch.tenon.is_current_stream_capturing()


def test_order_of_capture_and_replay(tmp_path: Path) -> None:
    x = filled(2)
    graph = Graph(keep_graph=True)
    for early in (graph.replay, graph.instantiate, graph.capture_end):
        with pytest.raises(RuntimeError, match="captur"):
            early()
    graph.capture_begin()
    with pytest.raises(RuntimeError, match="captures another graph"):
        Graph().capture_begin()
    x.add_(1)
    graph.capture_end()
    with pytest.raises(RuntimeError, match="`reset` it first"):
        graph.capture_begin()
    graph.instantiate()
    graph.replay()
    assert x.tolist() == [2, 3]
    with pytest.raises(RuntimeError, match="enable_debug_mode"):
        graph.debug_dump(str(tmp_path / "graph"))
    graph.enable_debug_mode()
    graph.debug_dump(str(tmp_path / "graph"))
    assert "aten::add_" in (tmp_path / "graph").read_text()
    graph.reset()
    with pytest.raises(RuntimeError, match="has not been captured"):
        graph.replay()
    graph.capture_begin()
    x.mul_(2)
    graph.capture_end()
    graph.replay()
    assert x.tolist() == [4, 6]
    shares = Graph(pool=graph.pool())
    shares.capture_begin()
    shares.capture_end()
    assert shares.pool() == graph.pool() != Graph().pool()


@pytest.mark.usefixtures("nothing_leaked")
def test_a_graph_may_go_while_it_is_captured() -> None:
    x = filled(4)
    graph = Graph()
    graph.capture_begin()
    x.add_(1)
    del graph
    x.mul_(3)
    assert x.tolist() == [3, 6, 9, 12]


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_leaked")
def test_a_graph_may_go_while_another_thread_captures_it() -> None:
    """The thread does not know, and keeps nothing of it."""
    held = [torch.ones(1 << 20, device="tenon"), Graph()]
    torch.tenon.synchronize()
    before = torch.tenon.memory_allocated()
    begun, may_end = threading.Event(), threading.Event()
    found: list[object] = []

    def capture() -> None:
        held[1].capture_begin()
        held[0].add_(1)
        held.clear()
        gc.collect()
        begun.set()
        may_end.wait(TIMEOUT)
        found.append(torch.ones(2, device="tenon").tolist())

    def begin() -> None:
        graph = held[1]
        thread.start()
        begun.wait(TIMEOUT)
        del graph

    thread = threading.Thread(target=capture, daemon=True)
    begin()
    gc.collect()
    assert torch.tenon.memory_allocated() <= before - (4 << 20)
    may_end.set()
    thread.join(TIMEOUT)
    assert found == [[1, 1]]


def test_nothing_is_left_of_a_thread_that_ended_within_a_capture() -> None:
    x, graphs = filled(4), [Graph()]
    torch.tenon.synchronize()
    before = _C.recorder_count()

    def begin() -> None:
        graphs[0].capture_begin()
        x.add_(1)

    in_thread(begin)
    with pytest.raises(RuntimeError, match="does not capture this graph"):
        graphs[0].capture_end()
    graphs.clear()
    gc.collect()
    assert _C.recorder_count() <= before
    assert x.tolist() == [1, 2, 3, 4]


def many(x: torch.Tensor) -> torch.Tensor:
    """More calls than a window has."""
    for _ in range(600):
        x = x + 1
    return x


@pytest.fixture
def gate():
    """Windows run by reference: nobody has to wait for their plans."""
    with executing("reference"):
        found = Gate()
        yield found
        found.open()


def thread_of(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_a_graph_that_is_reset_while_it_is_replayed(gate: Gate) -> None:
    x = filled(4)
    graph = captured(lambda: x.copy_(many(gate.wait(x))))
    gate.close()
    thread = thread_of(graph.replay)
    gate.until_reached()
    graph.reset()
    gate.open()
    thread.join(TIMEOUT)
    assert x.tolist() == [601, 602, 603, 604]


def test_threads_that_replay_one_graph_do_so_in_turn(gate: Gate) -> None:
    x = filled(4)
    graph = captured(lambda: x.copy_(many(gate.wait(x)) * 2))
    gate.close()
    first = thread_of(graph.replay)
    gate.until_reached()
    second = thread_of(graph.replay)
    until_asleep(second)
    gate.open()
    first.join(TIMEOUT)
    second.join(TIMEOUT)
    assert x.tolist() == [(2 * (k + 600) + 600) * 2 for k in (1, 2, 3, 4)]


def test_a_result_that_dies_while_its_window_is_about_to_run(gate: Gate) -> None:
    """A later window of the graph reads it."""
    x, y, made = filled(4), filled(4), []

    def calls() -> torch.Tensor:
        made.append(x + 1)
        many(x)
        return made[0] * 2

    kept: list[torch.Tensor] = []
    graph = captured(lambda: kept.append(calls()))
    with executing("auto"):
        for _ in range(3):  # so that it is recorded from here on
            gate.wait(y).cpu()
        gate.close()
        runs = gate.wait(y)  # another window of the device
        before = thread_of(runs.cpu)
        gate.until_reached()
    replays = thread_of(graph.replay)
    until_asleep(replays)
    made.clear()
    gate.open()
    before.join(TIMEOUT)
    replays.join(TIMEOUT)
    assert kept[0].tolist() == [4, 6, 8, 10]


@pytest.mark.parametrize("other_window", [False, True])
def test_a_graph_keeps_what_it_reads(other_window: bool) -> None:
    """Where the memory is out of the host's reach as well: tests/targets/test_asynchronous.py."""
    n, made, other = 1 << 20, [], []

    def begin() -> Graph:
        x = torch.full((n,), 3.0, device="tenon")
        torch.tenon.synchronize()
        graph = captured(lambda: made.append(x + 1))
        if other_window:
            other.append(x * 2)
        return graph

    gc.collect()
    begins_with = torch.tenon.memory_allocated()
    graph = begin()
    torch.tenon.synchronize()
    other += [torch.full((n,), 7.0, device="tenon") for _ in range(3)]
    torch.tenon.synchronize()
    graph.replay()
    assert made[0].eq(4).all().item()
    made.clear()
    other.clear()
    graph.reset()
    torch.tenon.synchronize()
    assert torch.tenon.memory_allocated() <= begins_with
