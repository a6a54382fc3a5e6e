"""What a backend declares of its hardware, and what the compiler does otherwise because of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from fresh_process import TESTS, output
from torch.fx.experimental.proxy_tensor import make_fx

import torch_tenon
from tests.targets.tree import TreeBackend
from torch_tenon.builder.counts import plan_counts
from torch_tenon.compiler.capabilities import Capabilities, Tiles
from torch_tenon.compiler.kernel import Kernel
from torch_tenon.compiler.loops.tree import NESTS, For, Statement
from torch_tenon.compiler.memory import place
from torch_tenon.compiler.schedule import Group
from torch_tenon.frontends.dynamo import compile_graph, decompositions
from torch_tenon.ir.values import Buffer

Function = Callable[..., torch.Tensor]

randn = torch.randn
FOUR = randn(3, 4, 5, 2)
INDEX = torch.tensor([1, 0, 2, 1])
RANKS: dict[str, tuple[Any, ...]] = {
    "permuted": (lambda x: x.permute(2, 0, 3, 1).contiguous() * 2, FOUR),
    "broadcast": (lambda x, y: x * y[:, None] + y[None, 1:2, :, None, 0], FOUR, randn(3, 5, 2)),
    "reduced": (lambda x: x.permute(3, 1, 0, 2).sum((0, 2)), FOUR),
    "softmax": (lambda x: x.transpose(1, 3).softmax(1), FOUR),
    "scan": (lambda x: x.transpose(0, 2).cumsum(1), FOUR),
    "picture": (lambda x: F.avg_pool2d(x, 2) + 1, FOUR),
    "norm": (lambda x: F.batch_norm(x.mT, None, None, training=True).relu(), FOUR),
    "joined": (lambda x, y: torch.cat([x.mT, y], 3), FOUR, randn(3, 4, 2, 3)),
    "gathered": (lambda x, k: x.transpose(0, 1)[:, k % 3].sin(), FOUR, INDEX),
    "added": (lambda x, k: torch.zeros(3, 5, 4, 2).index_add(0, k[:3], x.mT.mT.transpose(1, 2)),
              FOUR, INDEX),
    "windows": (lambda x: x.unfold(1, 2, 1).unfold(2, 3, 2).amax((1, 4)), FOUR),
}  # fmt: skip


class FewLoops(TreeBackend):
    """Trees, which it notes the depth of."""

    def __init__(self, rank: int | None) -> None:
        self.capabilities = Capabilities(rank=rank)
        self.depths: list[int] = []

    def kernel(self, group: Group, kept: set[Buffer]) -> Kernel:
        made: Kernel = super().kernel(group, kept)  # type: ignore[no-untyped-call]
        assert made.tree is not None
        self.depths.append(_depth(made.tree.body))
        return made

    def files(self, kernels: Sequence[Kernel]) -> None:
        return None


def _depth(body: Sequence[Statement]) -> int:
    """How many loops stand in one another."""
    return max(
        (isinstance(s, For) + _depth(s.body) for s in body if isinstance(s, NESTS)), default=0
    )


def _depths(rank: int | None, function: Function, *inputs: torch.Tensor) -> list[int]:
    """How deep the kernels of a function are, whose results are the CPU's."""
    module = make_fx(lambda *a: [function(*a)], decompositions(), tracing_mode="fake")(*inputs)
    backend = FewLoops(rank)
    found = compile_graph(module, inputs, backend=backend)
    (result,) = found([x.clone() for x in inputs])
    torch.testing.assert_close(result, function(*inputs), rtol=1e-5, atol=1e-5)
    return backend.depths


def test_atomics_give_the_same_in_any_order() -> None:
    for dtype, combination in ((torch.float32, "sum"), (torch.complex64, "prod")):
        with pytest.raises(ValueError, match=rf"'{combination}' of {dtype} is none of max, min"):
            Capabilities(atomics={dtype: frozenset({combination})})
    with pytest.raises(ValueError, match=r"'add' of torch.int32 is none of sum, prod"):
        Capabilities(atomics={torch.int32: frozenset({"add"})})
    names = ["sum", "max", "xor"]
    texts = {
        Capabilities(atomics={a: frozenset(names), b: frozenset(reversed(names))}).identity()
        for a, b in ((torch.int32, torch.int64), (torch.int64, torch.int32))
    }
    assert len(texts) == 1


@pytest.mark.parametrize("name", RANKS)
def test_kernels_have_no_more_loops_than_the_target(name: str) -> None:
    function, *inputs = RANKS[name]
    for rank in (2, 3):
        depths = _depths(rank, function, *inputs)
        assert depths and max(depths) <= rank, (rank, depths)


def test_most_of_these_have_more() -> None:
    found = [max(_depths(None, function, *inputs)) for function, *inputs in RANKS.values()]
    assert sum(depth > 2 for depth in found) >= len(found) - 2, found


def test_what_is_not_declared_so() -> None:
    for wrong in ({"rank": 1}, {"alignment": 96}, {"alignment": 32}, {"alignment": 1024}):
        with pytest.raises(ValueError, match=str(*wrong.values())):
            Capabilities(**wrong)  # type: ignore[arg-type]


def test_whole_numbers_that_become_floats_need_no_arithmetic_of_theirs() -> None:
    """PyTorch's decomposition chooses between 0 and 1 of int64, and converts that."""
    x, y = torch.tensor([-1.5, 0.0, 2.0, torch.nan]), randn(4)
    module = make_fx(lambda *a: [torch.heaviside(*a)], decompositions(), tracing_mode="fake")(x, y)
    backend, few = FewLoops(None), frozenset((torch.bool, torch.float32))
    backend.capabilities = Capabilities(storage=few, arithmetic=few)
    (found,) = compile_graph(module, [x, y], backend=backend)([x.clone(), y.clone()])
    torch.testing.assert_close(found, torch.heaviside(x, y))
    assert backend.depths == [1]


def test_plans_that_are_kept_depend_on_all_of_it() -> None:
    dtypes = torch.float32, torch.bfloat16, torch.int64
    declared = [
        Capabilities(),
        Capabilities(storage=frozenset(dtypes)),
        Capabilities(arithmetic=frozenset(dtypes)),
        Capabilities(spaces={"scratch": 64, "shared": 32}),
        Capabilities(tiles=(Tiles(4, 4, 4, *dtypes[:2], by_columns=frozenset(("left", "sums"))),)),
        Capabilities(rank=3),
        Capabilities(alignment=128),
        Capabilities(denormals=False),
    ]
    assert len({c.identity() for c in declared}) == len(declared)
    turned = Capabilities(storage=frozenset(dtypes[::-1]), spaces={"shared": 32, "scratch": 64})
    same = Capabilities(storage=frozenset(dtypes), spaces={"scratch": 64, "shared": 32})
    assert turned.identity() == same.identity() and "torch.bfloat16" in same.identity()


def test_blocks_of_an_arena_are_aligned() -> None:
    blocks = [(100, 0, 2), (300, 0, 1), (64, 1, 3), (1, 2, 3)]
    for alignment in (64, 256):
        offsets, nbytes = place(blocks, alignment)
        assert all(n % alignment == 0 for n in [*offsets, nbytes])


ALIGNED = """
import os
from asynchronous import AsynchronousQueue, AsynchronousTarget
from torch_tenon.compiler.capabilities import Capabilities
from torch_tenon.targets.cpu.backend import CpuBackend

found = []

class Queue(AsynchronousQueue):
    def launch(self, launch):
        found.extend(place[1] for place in launch.places if place is not None)
        super().launch(launch)

class Backend(CpuBackend):
    name = "aligned"
    capabilities = Capabilities(alignment=int(os.environ["ALIGNMENT"]), denormals=False)

class Target(AsynchronousTarget):
    name = "aligned"

    def __init__(self):
        super().__init__()
        self.backend = Backend()

    def _make_queue(self, memory):
        return Queue(memory)
"""


@pytest.mark.slow
def test_memory_of_kernels_is_aligned_as_the_target_says(tmp_path: Path) -> None:
    (tmp_path / "aligned.py").write_text(ALIGNED)
    code = """
        import torch, torch_tenon
        offsets = type(torch_tenon.target())._make_queue.__globals__["found"]

        def steps(x, y):
            for k in range(3):
                x, y = x.softmax(k % 2).cumsum(0) @ y, (y * x.amax(0)).sigmoid().cumsum(1) @ y
            return x + y

        x, y = torch.randn(2, 7, 7)
        for run in (steps, torch.compile(steps, backend="tenon")):
            for _ in range(4):
                found = run(x.to("tenon"), y.to("tenon")).cpu()
                torch.testing.assert_close(found, steps(x, y), rtol=1e-4, atol=1e-3)
        print(max(a for a in (64, 128, 256, 512) if all(n % a == 0 for n in offsets)))
    """
    path = f"{TESTS / 'targets'}:{TESTS.parent}"
    target = f"{tmp_path}/aligned.py:Target"
    for alignment in (64, 256, 512):
        environment = {"TENON_TARGET": target, "TENON_EXECUTE": "compiled"}
        environment |= {"ALIGNMENT": str(alignment), "PYTHONPATH": path}
        assert output(code, **environment) == str(alignment)


@pytest.mark.slow
def test_a_device_without_denormals_is_given_none(tmp_path: Path) -> None:
    (tmp_path / "aligned.py").write_text(ALIGNED)
    code = """
        import torch
        from torch_tenon.testing.space.domains import FLOATS, palette_of
        for dtype in FLOATS:
            least = torch.finfo(getattr(torch, dtype)).smallest_normal
            print(dtype, sum(0 < abs(x) < least for x in palette_of(dtype)))
    """
    path = f"{TESTS / 'targets'}:{TESTS.parent}"
    environment = {"ALIGNMENT": "64", "PYTHONPATH": path}
    flushing = output(code, TENON_TARGET=f"{tmp_path}/aligned.py:Target", **environment)
    assert flushing.split() == ["float32", "0", "float64", "0", "float16", "0", "bfloat16", "0"]
    assert output(code).split() == ["float32", "1", "float64", "1", "float16", "1", "bfloat16", "1"]


def train_by_numbers() -> None:
    """Steps whose numbers change, in eager code and compiled."""

    def step(x: torch.Tensor, k: float) -> torch.Tensor:
        y = (x * (0.5 + k) - 1.5 * k).sin().clamp(-k, 1 + k)
        return (y.to(torch.bfloat16) * (0.1 + k)).float() + torch.full(
            (5,), 0.3 * k, device=x.device
        )

    def train(device: str) -> tuple[list[torch.Tensor], list[float]]:
        torch.manual_seed(0)
        weights = [torch.randn(5, requires_grad=True) for _ in range(3)]
        moved = [w.detach().to(device).requires_grad_() for w in weights]
        optimizer = torch.optim.AdamW(moved, 1e-2, foreach=True)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        losses = []
        for k in range(8):
            optimizer.zero_grad()
            loss = torch.stack([step(w, 0.25 * k).square().sum() for w in moved]).sum()
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
        return moved, losses

    expected, got = train("cpu"), train("tenon")
    torch.testing.assert_close([x.cpu() for x in got[0]], expected[0])
    torch.testing.assert_close(got[1], expected[1])
    if torch_tenon.target().host_memory:  # others have steps on the host
        assert plan_counts()["failed"] == 0, plan_counts()
    report = str(torch_tenon.report())
    assert "host_kernel" not in report, report

    compiled = torch.compile(step, backend="tenon", dynamic=True)
    x = torch.randn(5)
    for k in (0.25, 0.5, 2.0, float("inf"), float("nan"), 1e30):
        given = compiled(x.to("tenon"), k).cpu()
        torch.testing.assert_close(given, step(x, k), equal_nan=True)
    product = torch.compile(lambda x, k: x * k, backend="tenon", dynamic=True)
    for k in (0.25, 1e300, -1e-300):  # beyond float32
        torch.testing.assert_close(product(x.to("tenon"), k).cpu(), x * k)
    wide = torch.compile(lambda x, k: x * k, backend="tenon", dynamic=True)
    for k in (0.1, 0.2, 0.3):  # a number among those of float64 is as wide as they are
        x = torch.randn(5, dtype=torch.float64)
        torch.testing.assert_close(wide(x.to("tenon"), k).cpu(), x * k, rtol=0, atol=0)
        torch.testing.assert_close((x.to("tenon") * k).cpu(), x * k, rtol=0, atol=0)
    print("agrees")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["OnHost", "Apart"])
def test_numbers_of_a_run_are_there_without_float64(name: str) -> None:
    target = f"{TESTS / 'targets' / 'no_double.py'}:{name}"
    code = """
        import sys
        sys.path[:0] = "..", "compiler"
        from test_capabilities import train_by_numbers
        train_by_numbers()
    """
    assert output(code, TENON_EXECUTE="compiled", TENON_TARGET=target) == "agrees"
