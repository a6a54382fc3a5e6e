"""The CPU's ops computed another way, as right as the first: what that moves may move."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

_WIDER = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex64: torch.complex128,
}

# Of two zeros with different signs they return whichever comes first, or last.
_SYMMETRIC = {"aten::maximum", "aten::minimum", "aten::fmax", "aten::fmin"}


class Otherwise(TorchDispatchMode):
    """Each op of narrow floats runs in double precision, reductions by PyTorch's decompositions,
    the larger and the smaller of two with these exchanged.

    It rounds once, to the dtype of the result. So it shows how far the CPU's own sums are off, and
    what depends on how they are taken: the CPU's running mean of numbers with an infinity is NaN,
    their sum by their count is the infinity.
    """

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """The op as it is, its results replaced by those in double precision."""
        kwargs = dict(kwargs or {})
        tags = set(func.tags)
        if func.is_view or tags & {torch.Tag.nondeterministic_seeded, torch.Tag.inplace_view}:
            return func(*args, **kwargs)
        given = [*args, *kwargs.values()]
        if not any(_narrow(x) for x in tree_leaves(given)):
            return func(*args, **kwargs)
        wide_args, wide_kwargs = tree_map(_widened, (args, kwargs))
        if func._schema.name in _SYMMETRIC:
            wide_args = wide_args[1::-1] + wide_args[2:]
        result = func(*args, **kwargs)
        way = decomposition_table.get(func, func) if torch.Tag.reduction in tags else func
        try:
            wide = way(*wide_args, **wide_kwargs)
        except RuntimeError:
            return result  # no kernel for doubles
        pairs = [(result, wide)]
        for k, argument in enumerate(func._schema.arguments):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            if argument.name in kwargs:
                pairs.append((kwargs[argument.name], wide_kwargs[argument.name]))
            elif k < len(args):
                pairs.append((args[k], wide_args[k]))
        for x, y in pairs:
            for narrow, exact in zip(tree_leaves(x), tree_leaves(y), strict=True):
                if _narrow(narrow) and narrow.shape == exact.shape:
                    narrow.copy_(exact)
        return result


def _narrow(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.dtype in _WIDER


def _widened(x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        # What the op writes is not to reach the tensor itself.
        return x.to(_WIDER.get(x.dtype, x.dtype), copy=True)
    return _WIDER.get(x, x) if isinstance(x, torch.dtype) else x
