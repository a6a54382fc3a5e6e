"""Buffers that a model assigns, `self.h = self.h + x`, while it is traced.

PyTorch's trace writes them at the end of the graph, those of the outermost module alone. A result
that is the old tensor, or a view of it, has the new numbers then. Those of other modules are lost.
Here the traced function writes them all itself, after what reads the old ones.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only
from torch.utils.hooks import RemovableHandle

from torch_tenon.exporting.errors import ExportError

# What PyTorch's trace calls for what it does with such buffers.
_HOOK = "register_buffer_assignment_hook"


@contextmanager
def assigned_buffers(model: nn.Module) -> Iterator[None]:
    """While it is entered, what a trace of the model assigns to buffers is written to them."""
    from torch.export import _trace

    forward, is_own, hook = model.forward, "forward" in vars(model), getattr(_trace, _HOOK)

    @functools.wraps(forward)
    def traced(*args: Any, **kwargs: Any) -> Any:
        before = [(m, dict(m._buffers)) for m in model.modules()]
        try:
            return _with_writes(model, before, forward(*args, **kwargs))
        finally:
            for m, buffers in before:
                m._buffers.clear()
                m._buffers.update(buffers)

    model.forward = traced
    setattr(_trace, _HOOK, lambda *_: RemovableHandle(OrderedDict()))
    try:
        yield
    finally:
        setattr(_trace, _HOOK, hook)
        if is_own:
            model.forward = forward
        else:
            del model.forward


def _with_writes(
    model: nn.Module, before: list[tuple[nn.Module, dict[str, Any]]], results: Any
) -> Any:
    """The results, before what was assigned is written to the buffers that were there."""
    names = {m: f"{name}." if name else "" for name, m in model.named_modules()}
    writes: dict[str, tuple[Tensor, Tensor]] = {}
    kept: set[int] = set()
    for m, buffers in before:
        for key, old in buffers.items():
            new = m._buffers.get(key)
            if not isinstance(old, Tensor):
                continue  # what was no buffer is none in a program
            if new is old:
                kept.add(_memory(old))
                continue
            name = names[m] + key
            if new is None:
                raise ExportError(f"the model takes away its buffer {name!r}: write it instead")
            if new.dtype is not old.dtype or tuple(new.shape) != tuple(old.shape):
                raise ExportError(
                    f"the model assigns to its buffer {name!r}, {_kind(old)}, a tensor that is "
                    f"{_kind(new)}: a program's state stays of one kind"
                )
            writes[name] = old, new
    memory = {_memory(old) for old, _ in writes.values()}
    if len(memory) < len(writes) or memory & kept:
        raise ExportError(
            f"the model assigns to buffers ({', '.join(writes)}) that share memory with others: "
            "write them instead"
        )

    def as_it_was(x: Tensor) -> Tensor:
        return x.clone() if x.layout is torch.strided and _memory(x) in memory else x

    if writes:
        results = tree_map_only(Tensor, as_it_was, results)
    values = [as_it_was(new) for _, new in writes.values()]
    for (old, _), value in zip(writes.values(), values, strict=True):
        old.copy_(value)
    return results


def _kind(x: Tensor) -> str:
    return f"{tuple(x.shape)} of {x.dtype}"


def _memory(x: Tensor) -> int:
    return x.untyped_storage()._cdata if x.layout is torch.strided else id(x)
