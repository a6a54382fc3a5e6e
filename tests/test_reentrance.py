"""Ops that run while another op of the device is being recorded or run."""

import gc
import weakref
from collections.abc import Iterator

import pytest
import torch
from against_cpu import assert_same, executing
from fresh_process import output
from torch.utils._python_dispatch import TorchDispatchMode
from turns import MODES, turns


@pytest.fixture(params=MODES, autouse=True)
def mode(request: pytest.FixtureRequest):
    with executing(request.param):
        yield request.param


@pytest.fixture
def eager_collection() -> Iterator[None]:
    """The garbage collector runs at about every object that Python makes."""
    before = gc.get_threshold()
    gc.set_threshold(1, 1, 1)
    yield
    gc.set_threshold(*before)
    gc.collect()


class Counting:
    """An object that runs ops of the device when it dies."""

    def __init__(self, total: torch.Tensor, read: bool) -> None:
        self.total, self.read = total, read
        self.me = self  # only the collector ends it

    def __del__(self) -> None:
        self.total.add_(1)
        other = (self.total * 2).sin()
        self.total[1:].mul_(1)
        if self.read:
            other.cpu()


def steps(x: torch.Tensor) -> list[torch.Tensor]:
    y = x * 2 + 1
    z = torch.split(y, 2)
    y[1:].add_(x[1:])
    values, places = torch.sort(y)
    return [y, *z, values, places, values.sum(), torch.stack([y, y]).relu()]


@pytest.mark.slow
@pytest.mark.usefixtures("eager_collection")
@pytest.mark.parametrize("read", [False, True])
def test_a_finalizer_that_the_collector_runs_while_calls_are_recorded(read: bool) -> None:
    total, made = torch.zeros(3, device="tenon"), 0
    for _ in turns(5):
        x = torch.rand(6)
        there = x.to("tenon")
        kept = []
        for _ in range(10):
            Counting(total, read)
            made += 1
            kept.append(steps(there))
        assert_same(kept, [steps(x)] * 10, rtol=1e-6, atol=1e-6)
    gc.collect()
    assert total.tolist() == [made] * 3


@pytest.mark.parametrize("read", [False, True])
def test_an_object_that_dies_inside_an_op(read: bool) -> None:
    """An op in Python for the device drops it between two calls of its own."""
    with torch.library._scoped_library("tenon_tests_dropping", "DEF") as library:
        held: list[object] = []

        def drop(x: torch.Tensor) -> torch.Tensor:
            y = x * 3
            held.clear()
            return y + 1

        library.define("drop(Tensor x) -> Tensor")
        library.impl("drop", drop, "PrivateUse1")
        total = torch.zeros(3, device="tenon")
        for turn in turns(5):
            x = torch.rand(4) + turn
            thing = Counting(total, read)
            thing.me = None
            held.append(thing)
            del thing
            y = torch.ops.tenon_tests_dropping.drop(x.to("tenon") * 2)
            assert total.tolist() == [turn + 1] * 3
            assert_same(y, x * 2 * 3 + 1)


@pytest.mark.parametrize("read", [False, True])
def test_a_finalizer_of_a_tensor(read: bool) -> None:
    total, dead = torch.zeros(3, device="tenon"), 0

    def count() -> None:
        total.add_(1)
        if read:
            total.sum().item()

    for _ in turns(5):
        x = torch.rand(5)
        there = x.to("tenon")
        for number in range(6):
            y = there * number
            weakref.finalize(y, count)
            dead += 1
            y = y + 1  # the one with the finalizer dies while this is recorded or just after
            assert_same(y, x * number + 1)
            y = there + number
            weakref.finalize(y, count)
            dead += 1
            y.mul_(2)
            del y
            there.mul_(2).mul_(0.5)
        assert total.tolist() == [dead] * 3
        assert_same(there, x)


def test_hooks_that_run_ops() -> None:
    for turn in turns(5):

        def compute(device: str, turn: int = turn) -> list[torch.Tensor]:
            torch.manual_seed(turn)
            log = torch.zeros(4, device=device)
            x = torch.rand(4).to(device).requires_grad_()
            y = x * 2
            y.register_hook(lambda grad: log.add_(grad) * 2)
            x.register_hook(lambda grad: grad + log.sum())

            def scale(leaf: torch.Tensor) -> None:
                log.mul_(leaf.grad)

            x.register_post_accumulate_grad_hook(scale)
            ((y * y).sum() + y.exp().sum()).backward()
            return [log, x.grad]

        assert_same(compute("tenon"), compute("cpu"), rtol=1e-5, atol=1e-5)


def test_a_mode_that_runs_ops_of_its_own() -> None:
    """Before and after each call; one in three reads, so what is recorded runs there."""

    class Auditing(TorchDispatchMode):
        def __init__(self, total: torch.Tensor) -> None:
            super().__init__()
            self.total, self.calls = total, 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            self.total.add_(1)
            result = function(*args, **(kwargs or {}))
            self.total[1:].add_(1)
            self.calls += 1
            if self.calls % 3 == 0:
                assert self.total[0].item() == self.calls
            return result

    for _ in turns(5):
        total, x = torch.zeros(2, device="tenon"), torch.rand(6)
        there = x.to("tenon")
        with Auditing(total) as auditing:
            results = steps(there)
        assert total.tolist() == [auditing.calls, 2 * auditing.calls]
        assert_same(results, steps(x), rtol=1e-6, atol=1e-6)


KERNELS = """
    import torch

    outside = {}

    def peek(x):
        "Reads a tensor that is no argument, and writes one."
        seen = outside["read"].cpu().sum()
        outside["write"].add_(1)
        return x + seen

    def nested(x):
        "Runs a whole computation of the device."
        there = outside["there"]
        y = (there * 2 + 1).sin()
        y[:1].zero_()
        return x + y.cpu()[: x.numel()]

    library = torch.library.Library("reentrance", "DEF")  # before the device looks
    for name, kernel in (("peek", peek), ("nested", nested)):
        library.define(f"{name}(Tensor x) -> Tensor")
        library.impl(name, kernel, "CPU")
        library.impl(name, torch.empty_like, "Meta")
    import torch_tenon
    from against_cpu import assert_same
    from turns import turns
"""


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["auto", "compiled"])
def test_a_kernel_that_reads_tensors_of_a_device(mode: str) -> None:
    """While a window of tenon:0 runs, calls are pending on the other device; or the kernels use
    the very device that runs them."""
    code = """
    def check(other, turn, count):
        x, r, t = torch.rand(4), torch.rand(5), torch.rand(4)
        a = x.to("tenon:0") * 2
        outside["read"] = r.to(other)
        outside["read"].mul_(2)
        outside["read"][1:].add_(turn)
        outside["write"] = count
        outside["there"] = t.to(other) * 1
        if other == "tenon:0":  # nothing that the kernels look at may be in the window they are in
            torch.tenon.synchronize()
        b = torch.ops.reentrance.peek(a)
        c = torch.ops.reentrance.nested(b * 2)
        d = a + 1
        read = r * 2
        read[1:] += turn
        want_b = x * 2 + read.sum()
        y = (t * 2 + 1).sin()
        y[:1].zero_()
        assert_same([b, c, d, a], [want_b, want_b * 2 + y, x * 2 + 1, x * 2], 1e-5, 1e-5)
        assert_same(outside["read"], read)
        assert count.tolist() == [turn + 1], (turn, count)
    for other in ("tenon:1", "tenon:0"):
        count = torch.zeros(1, device=other)
        for turn in turns(5):
            check(other, turn, count)
    print("right")
    """
    environment = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "TENON_DEVICES": "2"}
    assert output(KERNELS + code, TENON_EXECUTE=mode, **environment) == "right"


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["auto", "compiled"])
def test_a_kernel_neither_captures_nor_replays_a_graph_within_a_window(mode: str) -> None:
    code = """
    import torch

    def uses_graph(x):
        if captures:
            graph = torch.accelerator.Graph()
            graph.capture_begin()
            graph.capture_end()
        else:
            replayed.replay()
        return x + 1

    library = torch.library.Library("reentrance", "DEF")  # before the device looks
    library.define("uses_graph(Tensor x) -> Tensor")
    library.impl("uses_graph", uses_graph, "CPU")
    library.impl("uses_graph", torch.empty_like, "Meta")
    import torch_tenon
    from turns import turns

    count, replayed = torch.zeros(3, device="tenon"), torch.accelerator.Graph()
    with torch.Stream("tenon"), replayed:
        for _ in range(600):  # more than one window
            count.add_(1)
    for captures in (False, True):
        worked = failed = 0
        count.zero_()
        for _ in turns(4):
            y = torch.ops.reentrance.uses_graph(torch.ones(3).to("tenon") * 2)
            try:
                assert y.tolist() == [3, 3, 3]
                worked += 1
            except RuntimeError as error:
                assert "by an op's kernel on the host" in str(error), error
                failed += 1
        assert failed >= 2, (worked, failed)  # the first call runs at once
        assert captures or count.tolist() == [600 * worked] * 3, (worked, count)
    print("right")
    """
    environment = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "TENON_EXECUTE": mode}
    assert output(code, **environment) == "right"
