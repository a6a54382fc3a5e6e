"""Groups: neighbours in memory that one iteration of a loop touches, as the columns of a row."""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch

from torch_tenon.compiler.loops.tree import (
    Constant,
    For,
    Let,
    Load,
    Memory,
    Operand,
    Store,
    is_innermost,
)
from torch_tenon.ir.index import Index, strides
from torch_tenon.ir.values import Buffer


def chooses_in_groups(loop: For) -> bool:
    """Whether an iteration of an innermost loop stores a group, and loads one of which a condition
    says whether it may, which is not the same for all iterations."""
    if not is_innermost(loop):
        return False
    stores = ((s.memory, s.index) for s in loop.body if isinstance(s, Store))
    if not _has_group(loop, stores):
        return False
    known = _known(loop)
    varying = set(loop.body) - set(known)
    masked = (s for s in loop.body if isinstance(s, Load) and s.mask in varying)
    loads = ((s.memory, s.index) for s in masked)
    return _has_group(loop, loads)


def _has_group(loop: For, accesses: Iterable[tuple[Memory, Index]]) -> bool:
    """Whether two of the accesses are closer together than those of neighbouring iterations."""
    found: dict[Any, set[Index]] = defaultdict(set)
    for memory, index in accesses:
        step = (strides(index) or {}).get(loop.symbol, 0)
        if not isinstance(step, int):
            continue
        there = (memory.storage, memory.dtype) if isinstance(memory, Buffer) else memory
        others = found[there, step]
        for other in others:
            apart = index - other
            if isinstance(apart, int) and 0 < abs(apart) < abs(step * loop.step):
                return True
        others.add(index)
    return False


def _known(loop: For) -> dict[Let, Any]:
    """The values of a loop that are numbers whatever the iteration."""
    known: dict[Let, Any] = {}
    for s in loop.body:
        if isinstance(s, Let) and (value := _computed(s, known)) is not None:
            known[s] = value
    return known


def _value(x: Operand | None, known: dict[Let, Any]) -> Any:
    if isinstance(x, Constant):
        return x.value
    return x if isinstance(x, int) else known.get(x) if isinstance(x, Let) else None


def _computed(s: Let, known: dict[Let, Any]) -> Any:
    values = [_value(x, known) for x in s.args]
    if s.op == "logical_and" and False in values:
        return False
    if s.op == "logical_or" and True in values:
        return True
    if any(value is None for value in values):
        return None
    if s.op in ("copy", "index"):
        return values[0]
    if s.op == "logical_not":
        return not values[0]
    if s.op in ("logical_and", "logical_or"):
        return s.op == "logical_and"
    compare = getattr(operator, s.op, None) if s.dtype is torch.bool else None
    return None if compare is None else compare(*values)
