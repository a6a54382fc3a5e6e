"""Random trees compute the same before and after each rewrite."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from tests.compiler.loops.pipeline import sample
from tests.compiler.loops.programs import Case, memory_of
from tests.compiler.loops.trees import group_of
from torch_tenon.compiler.loops.lower import lower

REWRITES = {
    "keep_rows",
    "tile",
    "interchange",
    "weave",
    "neighbours",
    "share_stores",
    "place_inside",
    "sink",
    "share_out",
    "as_lanes",
    "place_values",
    "numbers_as_arguments",
    "transpose_tiles",
    "split_reductions",
    "scans_apart",
    "side_by_side",
    "jam",
    "collect_checks",
    "draw_before",
    "fission",
    "cut_where_conditions_change",
    "unswitch",
    "stage",
    "double_buffer",
    "batched",
}


@pytest.mark.slow
def test_rewrites_change_no_number() -> None:
    """A sample; `python -m tests.compiler.loops.pipeline` takes more."""
    changed = sample(160)
    assert {name for name in changed if name != "trees"} == REWRITES


FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a chain": lambda x: (x.exp() + 1).tanh() * 2,
    "row sums": lambda x: x.sum(1),
    "a softmax": lambda x: torch.softmax(x, 0),
    "running sums": lambda x: x.cumsum(1),
    "a norm": lambda x: F.layer_norm(x, (6,)),
    "parts of a concatenation": lambda x: torch.cat([x.sin(), x.exp()], 1),
    "half precision": lambda x: x.bfloat16() * 2 + 1,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_plain_tree_computes_what_pytorch_does(name: str) -> None:
    function, x = FUNCTIONS[name], torch.randn(5, 6)
    group, kept = group_of(function, x)
    memory = memory_of(group)
    (source,) = {b.storage for m in group.members for b in m.node.reads if b.writer is None}
    memory[source] = x.reshape(-1).view(torch.uint8)
    case = Case(0, group, kept, memory, {})
    (got,), failed = case.results(lower(group, kept))
    want = function(x)
    torch.testing.assert_close(got.view(want.dtype).reshape(want.shape), want)
    assert failed == []
