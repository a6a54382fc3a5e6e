"""Windows and graphs become programs in the same way: the same ops are loops, and the same are
calls for the same reasons."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import needs
import pytest
import torch
from torch.utils._pytree import tree_leaves

from tests.against_cpu import assert_same
from tests.plans import last_plan
from torch_tenon import _C
from torch_tenon.frontends import dynamo

aten = torch.ops.aten

CASES: dict[str, Callable[[torch.Tensor], Any]] = {
    "a transform of complex numbers": lambda x: torch.fft.fft(x).abs() + 1,
    "complex factors": lambda x: torch.linalg.inv_ex(torch.complex(x, x.t()))[0].abs(),
    "lists with a factor for each": lambda x: torch._foreach_addcmul(
        [x, x + 1], [x, x], [x, x * 2], [0.5, 2.0]
    ),
    "lists with one factor": lambda x: torch._foreach_addcdiv(
        [x, x], [x, x], [x.exp(), x.exp()], value=3
    ),
    "bounds of lists": lambda x: torch._foreach_clamp_min([x, -x], 0.25),
    "options": lambda x: torch.zeros_like(x, memory_format=torch.preserve_format) + x,
    "a gradient by frequency": lambda x: aten.embedding_dense_backward(
        x, (x[:, 0].abs() * 3).long(), 4, -1, True
    ),
    "a matrix's exponential": lambda x: torch.linalg.matrix_exp(x * 0.1) + 1,
}


@needs.plans
@pytest.mark.parametrize("name", CASES)
def test_the_same_calls(name: str, compiled: None, monkeypatch: pytest.MonkeyPatch) -> None:
    compute, x = CASES[name], torch.randn(6, 6)
    made: list[dict[str, str]] = []
    build = dynamo.build

    def kept(*args: Any) -> Any:
        built = build(*args)
        made.append(built.fallbacks)
        return built

    monkeypatch.setattr(dynamo, "build", kept)
    torch._dynamo.reset()
    run = torch.compile(compute, backend="tenon", fullgraph=True)
    close = {"rtol": 1e-5, "atol": 1e-5}
    assert_same(tree_leaves(run(x.to("tenon"))), tree_leaves(compute(x)), **close)
    for _ in range(3):  # the first call of an op runs at once
        found = compute(x.to("tenon"))
        _C.commit_all()
        assert_same(tree_leaves(found), tree_leaves(compute(x)), **close)
    assert len(made) == 1
    assert last_plan().fallbacks == made[0]
