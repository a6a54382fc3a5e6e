"""What the cpu makes of a group's tree computes what the plain tree does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from tests.compiler.loops.programs import cases
from torch_tenon.compiler.loops.lower import lower
from torch_tenon.compiler.loops.show import show
from torch_tenon.compiler.plan import Plan
from torch_tenon.frontends.graph import build
from torch_tenon.ir.values import size_hint
from torch_tenon.targets.c_family import layout as decide
from torch_tenon.targets.c_family.generate import loop_tree
from torch_tenon.targets.cpu.backend import cpu_backend

# So small that small trees have tiles, blocks and all else.
SMALL = {
    "BLOCK": 8,
    "TILE": 4,
    "CHUNKS": 2,
    "SHORT": 3,
    "FAR": 2,
    "FISSION": 4,
    "WORTH_CUTTING": 2,
    "WORTH_SWITCHING": 2,
    "SIDE_BY_SIDE": 2,
    "WORTH_SIDE_BY_SIDE": 1,
    "JAM": 2,
    "CACHED": 20,
}


@pytest.mark.slow
def test_small_trees_in_every_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SMALL.items():
        monkeypatch.setattr(decide, name, value)
    kinds: Counter[str] = Counter()
    for seed in range(60):
        for case in cases(seed):
            layout = decide.Layout(case.group, case.kept)
            kinds[layout.kind] += 1
            tree = loop_tree(case.group, case.kept, layout)
            want, failed = case.results(lower(case.group, case.kept))
            got, found = case.results(tree)
            assert found == failed
            for a, b in zip(got, want, strict=True):
                torch.testing.assert_close(
                    a,
                    b,
                    rtol=1e-4,
                    atol=1e-5,
                    equal_nan=True,
                    msg=lambda m, tree=tree: f"{m}\n{show(tree)}",
                )
    assert set(kinds) == {"flat", "row", "column", "scatter"}


def test_columns_of_other_lengths_run_the_same_code() -> None:
    """As where the sentences of a batch have another length, and a bias its gradient."""
    sources = set()
    for length in (297, 329, 409):
        x = torch.randn(length, 48)
        program = build(make_fx(lambda x: [x.sum(0)])(x)).program
        plan = Plan(program, cpu_backend()).compile()
        torch.testing.assert_close(plan.run([x])[0], x.sum(0), rtol=1e-4, atol=1e-4)
        sources.update(plan.sources)
    assert len(sources) == 1


@pytest.mark.parametrize(
    "body, shape, kind",
    [
        (lambda x: [torch.softmax(x, -1)], (40, 12), "column"),
        (lambda x: [torch.logsumexp(x.unsqueeze(2) + x[:6], 1)], (40, 6), "column"),
        (lambda x: [torch.softmax(x, -1)], (40, 16), "row"),  # long enough for a vector
        (lambda x: [torch.softmax(x, -1)], (8, 12), "row"),  # too few rows for one
        (lambda x: [x.exp().sum(-1)], (40, 6), "row"),  # read once
        (lambda x: [x - x.amax(-1, True) + x.sum(-1, True)], (40, 12), "row"),  # quick alone
    ],
)
def test_lanes_run_across_short_rows_that_are_reduced_several_times(
    body: Callable[[torch.Tensor], list[torch.Tensor]], shape: tuple[int, ...], kind: str
) -> None:
    x = torch.randn(shape)
    plan = Plan(build(make_fx(body)(x)).program, cpu_backend()).compile()
    (kernel,) = plan.kernels
    assert kernel.layout == kind
    torch.testing.assert_close(plan.run([x]), body(x))


@pytest.mark.parametrize("shape", [(2, 12, 5, 7), (1, 12, 96, 80), (2, 12, 3, 4, 5)])
def test_lanes_run_across_dense_channels_of_groups(shape: tuple[int, ...]) -> None:
    """A group has runs of four channels, which are no vectors."""
    format = torch.channels_last if len(shape) == 4 else torch.channels_last_3d
    x = (torch.randn(shape) + 3).to(memory_format=format)
    weight, bias = torch.randn(12), torch.randn(12)

    def body(x: torch.Tensor, *of_channels: torch.Tensor) -> list[torch.Tensor]:
        norm = torch.nn.functional.group_norm
        return [norm(x, 3, *of_channels), norm(x * 2, 3)]  # of memory, and of what is computed

    plan = Plan(build(make_fx(body)(x, weight, bias)).program, cpu_backend()).compile()
    large = [k for k in plan.kernels if size_hint(k.work) >= x.numel()]
    assert {k.layout for k in large} == {"column", "flat"}
    got = plan.run([x, weight, bias])
    torch.testing.assert_close(got, body(x, weight, bias), rtol=1e-4, atol=1e-5)
