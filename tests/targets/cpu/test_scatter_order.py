"""The order of a scatter's loops: lanes along what lies dense where it stores, and along rows, one
element after the other, where that is how it reads."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from torch_tenon.compiler.plan import Plan
from torch_tenon.frontends.dynamo import decompositions
from torch_tenon.frontends.graph import build
from torch_tenon.targets.cpu.backend import cpu_backend

Scatter = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
ORDERS: dict[str, tuple[Scatter, bool]] = {
    "rows by index": (lambda x, i: x.index_add(0, i[:, 0], x), True),
    "bags of rows": (lambda x, i: torch.nn.functional.embedding_bag(i, x, mode="sum"), True),
    "along rows": (lambda x, i: x.scatter_add(1, i, x), False),
    "across rows": (lambda x, i: x.scatter_add(0, i, x), True),
}


@pytest.mark.parametrize("name", ORDERS)
def test_lanes_are_what_lies_dense(name: str) -> None:
    scatter, lanes = ORDERS[name]
    x, i = torch.randn(128, 128), torch.randint(0, 128, (128, 128))
    graph = make_fx(lambda *given: [scatter(*given)], decomposition_table=decompositions())(x, i)
    kernels = [k for k in Plan(build(graph).program, cpu_backend()).sources if "report(" in k]
    # i0, i1, ... go over results, j0, j1, ... over what is added to each.
    innermost = re.findall(r"for \(int64_t (\w)\d", kernels[-1])[-1]
    assert innermost == ("i" if lanes else "j"), kernels[-1]
