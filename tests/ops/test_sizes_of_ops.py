"""The ops of PyTorch's database at sizes of which the database knows nothing.

Each dimension of a sample gets other lengths, wherever it is met. What calls with some of them
taught must not tell anything wrong of the rest: results, their strides and gradients are the CPU's.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from against_cpu import assert_same, executing
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from torch_tenon.testing.conformance.databases import op_infos

pytestmark = pytest.mark.long

# What is drawn differs, what is empty holds anything, and what has equal rows has no one solution;
# lengths of a sequence or of segments that its tensors do not have end the process on the CPU.
_SKIPPED = {
    *("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"),
    *("normal", "bernoulli", "multinomial", "cauchy", "exponential", "geometric", "log_normal"),
    *("uniform", "pca_lowrank", "svd_lowrank", "nn.functional.rrelu", "nn.functional.ctc_loss"),
    *("_segment_reduce", "linalg.lstsq", "nn.functional.multi_head_attention_forward"),
}
OPS = [
    name
    for name, op in sorted(op_infos().items())
    if op.name not in _SKIPPED
    and not any(word in name for word in ("rand", "dropout", "fractional", "normal_", "sparse"))
    and torch.float32 in op.dtypes
]


def with_length(sample: Any, old: int, new: int) -> Any:
    """The sample with `new` for each length `old`, of a dimension or in a list of numbers."""

    def change(x: Any) -> Any:
        if isinstance(x, Tensor):
            for d in (d for d, n in enumerate(x.shape) if n == old):
                x = x.index_select(d, torch.arange(new) % old)
            return x
        if isinstance(x, list | tuple):
            numbers = x and all(isinstance(n, int) and not isinstance(n, bool) for n in x)
            return type(x)((new if n == old else n) if numbers else change(n) for n in x)
        return {k: change(v) for k, v in x.items()} if isinstance(x, dict) else x

    return change(sample)


def variants(op: Any, draw: random.Random) -> Iterator[Any]:
    """Arguments as a pair of positions and names."""
    samples = list(op.sample_inputs("cpu", torch.float32))
    draw.shuffle(samples)
    for sample in samples[:8]:
        given = tree_map(
            lambda x: x.detach() if isinstance(x, Tensor) else x,
            ((sample.input, *sample.args), sample.kwargs),
        )
        tensors = [x for x in tree_leaves(given) if isinstance(x, Tensor)]
        if any(x.layout != torch.strided for x in tensors) or given[1].get("dropout_p"):
            continue
        yield given
        lengths = sorted({n for x in tensors for n in x.shape if n > 1})
        for old, _ in itertools.product(lengths[:3], range(6)):
            yield with_length(given, old, draw.randrange(2, 14))


def outcome(op: Any, given: Any, device: str) -> list[Tensor] | Exception:
    """The results and the gradients, or what was raised in place of them."""
    try:
        args, names = tree_map(
            lambda x: x.clone().to(device) if isinstance(x, Tensor) else x, given
        )
        inputs = [x for x in tree_leaves((args, names)) if isinstance(x, Tensor)]
        inputs = [x.requires_grad_() for x in inputs if x.is_floating_point()]
        found = [x for x in tree_leaves(op(*args, **names)) if isinstance(x, Tensor)]
        ends = [x.sum() for x in found if x.requires_grad and x.is_floating_point()]
        if ends and op.supports_autograd:
            grads: Sequence[Any] = torch.autograd.grad(ends, inputs, allow_unused=True)
            found += [x for x in grads if x is not None]
        return [x.detach().cpu() if x.layout != torch.strided else on_host(x) for x in found]
    except Exception as error:
        return error


def on_host(x: Tensor) -> Tensor:
    """A copy with the strides that it has on the device."""
    x = x.detach()
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype).copy_(x)


def alike(x: Tensor, y: Tensor) -> bool:
    return torch.allclose(x.to_dense(), y.to_dense(), 1e-3, 1e-3, equal_nan=True)


@pytest.mark.parametrize("name", OPS)
def test_other_lengths_give_what_the_cpu_gives(name: str) -> None:
    op = op_infos()[name]
    with executing("reference"):
        for given in variants(op, random.Random(name)):
            wanted, found = (outcome(op, given, device) for device in ("cpu", "tenon"))
            if isinstance(wanted, Exception):
                assert isinstance(found, Exception), f"the CPU refuses: {wanted}"
                continue
            if isinstance(found, Exception):
                raise found
            again = outcome(op, given, "cpu")
            if not all(map(alike, wanted, again)):  # what is drawn, or was never written
                continue
            assert [x.stride() for x in found if x.layout == torch.strided] == [
                x.stride() for x in wanted if x.layout == torch.strided
            ]
            assert_same(found, wanted, rtol=1e-3, atol=1e-3)
