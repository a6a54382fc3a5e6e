"""Calls of PyTorch's op database as exported programs, sizes of any value: the CPU's numbers at the
sizes that were exported and at others, or an error that says why there is no such program.

Some ops run each time. All do by `pytest --whole tests/exporting/test_op_database.py`, which takes
a quarter of an hour on two cores.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from against_cpu import assert_same
from torch import Tensor, nn
from torch.export import Dim
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

import torch_tenon
from torch_tenon.exporting.errors import ExportError
from torch_tenon.runtime.library import ProgramError

CALLS = 2  # of each op
UNWRITTEN = ("empty", "resize")  # what their names have that give memory as it is
OPS = {
    op.formatted_name: op
    for op in op_db
    if torch.float32 in op.supported_dtypes("cpu") and not any(w in op.name for w in UNWRITTEN)
}


class Call(nn.Module):
    """An op, of whose arguments those that are tensors are given."""

    def __init__(self, op: Callable[..., Any], args: Any, kwargs: Any) -> None:
        super().__init__()
        self.op = op
        leaves, self.spec = tree_flatten((args, kwargs))
        self.places = [k for k, x in enumerate(leaves) if isinstance(x, Tensor)]
        tensors = [leaves[k] for k in self.places]
        self.given = [x.contiguous() if x.layout is torch.strided else x for x in tensors]
        self.others = [None if isinstance(x, Tensor) else x for x in leaves]

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        leaves = list(self.others)
        for k, x in zip(self.places, tensors, strict=True):
            leaves[k] = x
        args, kwargs = tree_unflatten(leaves, self.spec)
        return tuple(x for x in tree_leaves(self.op(*args, **kwargs)) if isinstance(x, Tensor))


def result(call: Call, tensors: Sequence[Tensor], seed: int = 0) -> tuple[Tensor, ...] | None:
    """What the CPU gives; None where it refuses."""
    torch.manual_seed(seed)
    try:
        return call(*(x.clone() for x in tensors))
    except Exception:
        return None


def is_compared(call: Call) -> bool:
    """Whether it gives the same each time, in dense memory and a dtype that can be compared."""
    one, other = (result(call, call.given, seed) for seed in range(2))
    if one is None or any(x.layout is not torch.strided for x in (*call.given, *one)):
        return False
    try:
        assert_same(one, other)
    except (AssertionError, NotImplementedError):
        return False
    return True


def longer(x: Tensor) -> Tensor:
    """Numbers of the same kind in two elements more of each dimension."""
    sizes = [n + 2 if n > 1 else n for n in x.shape]
    return torch.randn(sizes).to(x.dtype)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", OPS)
def test_calls(name: str, tmp_path: Path) -> None:
    op = OPS[name]
    samples = list(op.sample_inputs("cpu", torch.float32, requires_grad=False))
    random.Random(name).shuffle(samples)
    for sample in samples[:CALLS]:
        call = Call(op.op, (sample.input, *sample.args), sample.kwargs).eval()
        if not call.given or not is_compared(call):
            continue
        sizes = tuple(dict.fromkeys(range(x.dim()), Dim.AUTO) for x in call.given)
        copies = tuple(x.clone() for x in call.given)
        try:
            traced = torch.export.export(call, copies, dynamic_shapes=(sizes,))
        except Exception:
            continue  # PyTorch's trace takes no such sizes
        path = tmp_path / "model.tenon"
        try:
            torch_tenon.export(traced, path=path, cpu="native")
        except ExportError as error:
            assert str(error)
            continue
        program = torch_tenon.load(path)
        for given in (call.given, [longer(x) for x in call.given]):
            expected = result(call, given)
            try:
                got = program(*(x.clone() for x in given))
            except (ProgramError, ValueError):  # the latter of an index out of range
                assert given is not call.given
                continue
            assert expected is not None, "the CPU refuses it"
            assert_same(tree_leaves(got), list(expected), rtol=1e-4, atol=1e-5)
