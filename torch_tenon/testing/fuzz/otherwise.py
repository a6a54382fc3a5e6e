"""The CPU's ops computed another way, as right as the first: what that moves may move."""

from __future__ import annotations

import functools
import random
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.weak import WeakTensorKeyDictionary

_WIDER = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.float64: torch.float64,
    torch.complex64: torch.complex128,
    torch.complex128: torch.complex128,
}

# Of two zeros with different signs they return whichever comes first, or last.
_SYMMETRIC = {"aten::maximum", "aten::minimum", "aten::fmax", "aten::fmin"}
_BOUNDED = {
    f"aten::{name}{in_place}"
    for name in ("clamp", "clamp_min", "clamp_max")
    for in_place in ("", "_")
}
# Their result depends on the dtype that they run in.
_OF_DTYPE = {"aten::nan_to_num", "aten::nan_to_num_"}
# They subtract a mean: of equal numbers nothing is left, or what the mean is off by.
_CENTRED = {f"aten::native_{name}_norm" for name in ("batch", "group", "layer")}


class Otherwise(TorchDispatchMode):
    """Each op of floats runs in double precision, reductions by PyTorch's decompositions,
    the larger and the smaller of two with these exchanged, a clamp takes the bound where it equals
    the number, the mean of equal numbers is exact.

    It rounds once, to the dtype of the result; with a `seed`, what later ops read of 16-bit results
    is by chance not rounded, as within a fused loop. So it shows how far the CPU's own sums are
    off, and what depends on how they are taken: the CPU's running mean of numbers with an infinity
    is NaN, their sum by their count is the infinity.
    """

    def __init__(self, seed: int | None = None) -> None:
        super().__init__()
        self._random = None if seed is None else random.Random(seed)
        # What 16-bit numbers were before they were rounded, and the version of the tensor then.
        self._unrounded = WeakTensorKeyDictionary()

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
        if func._schema.name in _OF_DTYPE:
            return func(*args, **kwargs)
        if func.is_view or tags & {torch.Tag.nondeterministic_seeded, torch.Tag.inplace_view}:
            return func(*args, **kwargs)
        outs = {a.name for a in func._schema.arguments if a.is_out}
        read = [*args, *(x for name, x in kwargs.items() if name not in outs)]
        if not any(_floating(x) for x in tree_leaves(read)):
            return _of_integers(func, outs, *args, **kwargs)
        wide_args, wide_kwargs = tree_map(self._widened, (args, kwargs))
        if func._schema.name in _SYMMETRIC:
            wide_args = wide_args[1::-1] + wide_args[2:]
        result = func(*args, **kwargs)
        way = decomposition_table.get(func, func) if torch.Tag.reduction in tags else func
        if func._schema.name in _BOUNDED:
            way = functools.partial(_bounded, func)
        try:
            wide = way(*wide_args, **wide_kwargs)
        except RuntimeError:
            return result  # no kernel for doubles
        if func._schema.name in _CENTRED:
            wide[0].masked_fill_(wide[0].abs() < torch.finfo(torch.float32).eps, 0)
        pairs = [(result, wide)]
        for k, argument in enumerate(func._schema.arguments):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            if argument.name in kwargs:
                pairs.append((kwargs[argument.name], wide_kwargs[argument.name]))
            elif k < len(args):
                pairs.append((args[k], wide_args[k]))
        for x, y in pairs:
            for rounded, exact in zip(tree_leaves(x), tree_leaves(y), strict=True):
                if _floating(rounded) and rounded.shape == exact.shape:
                    rounded.copy_(exact)
                    if self._random is not None and rounded.dtype.itemsize == 2:
                        self._unrounded[rounded] = (rounded._version, exact)
        return result

    def _widened(self, x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return _WIDER.get(x, x) if isinstance(x, torch.dtype) else x
        version, wide = self._unrounded.get(x, (None, None))
        if version != x._version or self._random is None or self._random.random() < 0.5:
            # What the op writes is not to reach the tensor itself.
            wide = x.to(_WIDER.get(x.dtype, x.dtype), copy=True)
        # Between two elements lies another, so that the CPU takes them one by one: its vectors'
        # fmod of huge numbers is NaN, and what they shrink to nothing has no sign.
        return torch.stack((wide, wide), -1)[..., 0] if _floating(x) else wide


def _of_integers(
    func: torch._ops.OpOverload, outs: AbstractSet[str], *args: Any, **kwargs: Any
) -> Any:
    """The op with integers, or with numbers alone, rounded from double precision where its result
    is float32; `outs` are arguments that it writes and does not read."""
    result = func(*args, **kwargs)
    found = [x for x in tree_leaves(result) if _floating(x)]
    writes = {a.name for a in func._schema.arguments if a.alias_info is not None}
    if not found or "empty" in func._schema.name or not writes <= outs:
        return result
    if (dtype := kwargs.get("dtype")) is not None:
        kwargs["dtype"] = _WIDER.get(dtype, dtype)
    for name in writes & kwargs.keys():  # they have the results' sizes by now
        kwargs[name] = tree_map(
            lambda x: x.to(_WIDER.get(x.dtype, x.dtype), copy=True), kwargs[name]
        )
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        exact = [x for x in tree_leaves(func(*args, **kwargs)) if _floating(x)]
    finally:
        torch.set_default_dtype(before)
    for rounded, wide in zip(found, exact, strict=True):
        rounded.copy_(wide)
    return result


def _bounded(func: torch._ops.OpOverload, *args: Any, **kwargs: Any) -> torch.Tensor:
    """A clamp that takes the bound where it equals the number: they may be zeros of two signs."""
    given = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | kwargs
    found: torch.Tensor = given["self"]
    for name, nearer in (("min", torch.maximum), ("max", torch.minimum)):
        bound = given.get(name)
        if bound is not None:
            wide = None if isinstance(bound, torch.Tensor) else torch.float64
            found = nearer(torch.as_tensor(bound, dtype=wide), found)
    result: torch.Tensor = func(*args, **kwargs)
    return result.copy_(found)


def _floating(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.dtype in _WIDER
