"""Ops that are composed of others: their compositions run on values instead of tensors."""

from __future__ import annotations

from collections import Counter
from typing import Any, Protocol

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from torch_tenon.ir.index import Index
from torch_tenon.ir.program import Program
from torch_tenon.ir.values import Lazy, Stored, Value, dense_layout, weigh
from torch_tenon.ops import variants
from torch_tenon.ops.compositions import composition_of
from torch_tenon.ops.lowerings.table import CannotLower, TensorMeta, broadcast_to, cast, find


class Lowering(Protocol):
    """What lowers the ops that a composition calls."""

    program: Program

    def lower(
        self,
        op: Any,
        positional: list[Any],
        keywords: dict[str, Any],
        results: list[TensorMeta | None],
    ) -> Any:
        """The op's result as a value, a list of them where it has several."""


class Composition(TorchDispatchMode):
    """Runs a function of tensors on values: every op that it calls is lowered as it comes.

    The tensors that the function sees have sizes and no memory.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # PyTorch would hide what is below from Dynamo, and load Dynamo for that, with the first op.
        return False

    def __init__(self, builder: Lowering) -> None:
        super().__init__()
        self.builder = builder
        self.values: dict[int, tuple[torch.Tensor, Value]] = {}  # by the tensor's identity
        self.uses: Counter[int] = Counter()  # how many ops read that tensor

    def run(self, function: Any, positional: list[Any], keywords: dict[str, Any]) -> Any:
        """The function's results, as values."""
        args, named = tree_map(self._tensor, (positional, keywords))
        with self:
            result = function(*args, **named)
        if result is NotImplemented:
            raise CannotLower("such arguments are not decomposed")
        self._share([t for t in tree_leaves(result) if isinstance(t, torch.Tensor)])
        return tree_map(self._value, result)

    def _share(self, results: list[torch.Tensor]) -> None:
        """Gives memory to results that others are computed of, so that they read it."""
        own = {id(t) for t in results}
        made = [(t, value) for t, value in self.values.values() if id(t) in own]  # in this order
        for t, value in made:
            if self.uses[id(t)] and weigh(value, self.uses[id(t)] + 1):
                memory = self.builder.program.realise(value, t.stride())
                for _, later in made:  # does not know that it reads this memory
                    if isinstance(later, Lazy):
                        later.reads |= memory.reads

    def _tensor(self, x: Any) -> Any:
        return self._enter(meta_tensor(x), x) if isinstance(x, Value) else x

    def _enter(self, t: torch.Tensor, value: Value) -> torch.Tensor:
        self.values[id(t)] = (t, value)  # the tensor is kept, so that its identity is its own
        return t

    def _value(self, x: Any) -> Any:
        return self.values[id(x)][1] if isinstance(x, torch.Tensor) else x

    def __torch_dispatch__(
        self, op: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Lowers one op."""
        kwargs = kwargs or {}
        self.uses.update(id(t) for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor))
        composed = composition_of(op)
        if composed is not None and find(op) is None:
            with self:
                result = composed(*args, **kwargs)
            if result is not NotImplemented:
                return result
        if torch.Tag.data_dependent_output in op.tags:
            raise CannotLower(f"{op} needs data")
        functional = variants.functional_of(op)
        if functional is None:
            raise CannotLower(f"{op} writes its arguments")
        result = op(*args, **kwargs)
        if any(
            isinstance(t, torch.Tensor) and t.device.type != "meta"
            for t in tree_leaves((args, kwargs, result))
        ):
            raise CannotLower(f"{op} makes a tensor outside of the device")
        schema = op._schema.arguments
        given = dict(zip((a.name for a in schema), args, strict=False)) | kwargs
        written = [a for a in schema if variants.is_written(a)]
        given = {
            k: self._value_of_any(v)
            for k, v in given.items()
            if not any(a.name == k and variants.is_out(a) for a in written)
        }
        outputs = [result] if isinstance(result, torch.Tensor) else list(result or ())
        metas = [
            TensorMeta(t.dtype, tuple(t.shape), tuple(t.stride()))
            for t in tree_leaves(outputs)
            if isinstance(t, torch.Tensor)
        ]
        positional, keywords = as_called(functional, given)
        values = self.builder.lower(functional, positional, keywords, list(metas))
        if written:
            if len(written) != 1 or not isinstance(result, torch.Tensor):
                raise CannotLower(f"{op} writes several arguments")
            value = cast(values, result.dtype)
            self._enter(result, broadcast_to(value, tuple(result.shape)))
            return result
        if isinstance(result, torch.Tensor):
            return self._enter(result, values)
        for t, v in zip(tree_leaves(result), _flat(values), strict=True):
            self._enter(t, v)
        return result

    def _value_of_any(self, x: Any) -> Any:
        return tree_map(self._value, x)


def meta_tensor(x: Any) -> Any:
    """A tensor of a value's sizes without memory; anything else as it is."""
    if not isinstance(x, Value):
        return x
    strides = x.layout.strides if isinstance(x, Stored) else dense_layout(x.sizes).strides
    sizes = tuple(map(_static, x.sizes))
    return torch.empty_strided(sizes, tuple(map(_static, strides)), dtype=x.dtype, device="meta")


def _flat(x: Any) -> list[Any]:
    return [v for y in x for v in _flat(y)] if isinstance(x, list | tuple) else [x]


def as_called(op: Any, given: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Positional and keyword arguments as a graph has them: defaults at the end are left out."""
    positional: list[Any] = []
    keywords: dict[str, Any] = {}
    arguments = op._schema.arguments
    for a in arguments:
        value = given.get(a.name, a.default_value)
        if not a.kwarg_only:
            positional.append(value)
        elif not _is_default(a, value):
            keywords[a.name] = value
    for a in reversed([a for a in arguments if not a.kwarg_only]):
        if not _is_default(a, positional[-1]):
            break
        positional.pop()
    return positional, keywords


def _is_default(argument: torch.Argument, value: Any) -> bool:
    default = argument.default_value
    if not argument.has_default_value() or isinstance(value, Value):
        return False
    return type(value) is type(default) and bool(value == default)


def _static(size: Index) -> int:
    if not isinstance(size, int):
        raise CannotLower("it is composed of ops whose sizes are known only at run time")
    return size
