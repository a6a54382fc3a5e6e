"""Graphs: what is captured runs when it is replayed, and gives what the same calls give."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from against_cpu import assert_same, executing
from torch.accelerator import Graph

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
    "a replay": lambda x: ANOTHER[0].replay(),
    "a sparse tensor": lambda x: x.to_sparse(),
}
ANOTHER: list[Graph] = []


@pytest.mark.parametrize("part", NO_PARTS)
def test_what_cannot_be_part_of_one(part: str) -> None:
    other = filled(4)
    ANOTHER[:] = [captured(lambda: other.add_(1))]
    x = filled(4)
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
