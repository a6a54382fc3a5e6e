"""PyTorch's databases as lists of cases, and patterns that choose among them."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import torch

from .case import KINDS, Case

# Optimizers name no dtypes in their database; these are what PyTorch trains in.
OPTIMIZER_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64)
# Modules name float32 and float64 in their database; the CPU may support these too, which shows
# only when they run.
MODULE_DTYPES = (torch.bfloat16, torch.float16)


class UnknownName(ValueError):
    """A pattern that chooses nothing; the text names the nearest that exists."""


@cache
def op_infos() -> dict[str, Any]:
    """OpInfo by full name, without the jiterator ops, which exist for CUDA alone."""
    from torch.testing._internal import common_methods_invocations as invocations

    # The database wraps random ops so that each call draws from a fresh seed and puts the
    # generators back. Here they draw as they do for users, which shows whether they draw at all.
    setattr(invocations, "wrapper_set_seed", _call)  # noqa: B010
    infos = {op.full_name: op for op in invocations.op_db}
    return {name: op for name, op in infos.items() if not op.name.startswith("jiterator")}


def _call(op: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return op(*args, **kwargs)


@cache
def module_infos() -> dict[str, Any]:
    """ModuleInfo by name."""
    from torch.testing._internal.common_modules import module_db

    return {info.name: info for info in module_db}


@cache
def optimizer_infos() -> dict[str, Any]:
    """OptimizerInfo by name."""
    from torch.testing._internal.common_optimizers import optim_db

    return {info.name: info for info in optim_db}


_DATABASES = {"ops": op_infos, "modules": module_infos, "optimizers": optimizer_infos}


def dtype_name(dtype: torch.dtype) -> str:
    """`float32` for `torch.float32`."""
    return str(dtype).removeprefix("torch.")


def dtypes_of(kind: str, name: str) -> list[torch.dtype]:
    """The dtypes with which an entry of a database is run, in a fixed order."""
    info = _DATABASES[kind]()[name]
    if kind == "ops":
        dtypes: Iterable[torch.dtype] = info.dtypes
    elif kind == "modules":
        dtypes = {*info.dtypes, *MODULE_DTYPES}
    else:
        dtypes = [d for d in OPTIMIZER_DTYPES if info.supports_complex or not d.is_complex]
    return in_order(dtypes)


def in_order(dtypes: Iterable[torch.dtype]) -> list[torch.dtype]:
    """`dtypes` in the order in which reports show them; the first is the most common one."""
    return sorted(dtypes, key=lambda d: (_ORDER.index(d) if d in _ORDER else len(_ORDER), str(d)))


_ORDER = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.complex64,
    torch.complex128,
    torch.complex32,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
]


def list_cases(
    kinds: Iterable[str] = KINDS, patterns: Iterable[str] = (), dtypes: Iterable[str] = ()
) -> list[Case]:
    """The cases of `kinds` whose name matches a pattern (shell style, all if there is none).

    A pattern also matches the variants of an op that it names: `div` chooses
    `div.floor_rounding` too. `dtypes` are names such as `float32`. Raises UnknownName for a
    pattern or dtype that chooses nothing.
    """
    patterns, dtypes = list(patterns), list(dtypes)
    names = [(kind, name) for kind in kinds for name in _DATABASES[kind]()]
    chosen = names
    if patterns:
        for pattern in patterns:
            if not any(_matches(name, pattern) for _, name in names):
                raise UnknownName(_unknown(pattern, [name for _, name in names]))
        chosen = [pair for pair in names if any(_matches(pair[1], p) for p in patterns)]
    for name in dtypes:
        if not isinstance(getattr(torch, name, None), torch.dtype):
            known = [n for n in dir(torch) if isinstance(getattr(torch, n), torch.dtype)]
            near = difflib.get_close_matches(name, known, 1, 0.0)[0]
            raise UnknownName(f"no dtype is called {name!r}; the nearest is {near!r}")
    wanted = {getattr(torch, name) for name in dtypes}
    cases = [
        Case(kind, name, dtype_name(dtype))
        for kind, name in chosen
        for dtype in dtypes_of(kind, name)
        if not wanted or dtype in wanted
    ]
    if not cases:
        raise UnknownName(f"none of the {len(chosen)} entries chosen runs with {', '.join(dtypes)}")
    return cases


def _matches(name: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(name, pattern) or name.startswith(f"{pattern}.")


def _unknown(pattern: str, names: list[str]) -> str:
    # What was typed is as near to the end of a name (`gelu` of nn.functional.gelu) as to the whole.
    word = pattern.strip("*")

    def likeness(name: str) -> float:
        parts = (name, name.rsplit(".", 1)[-1])
        return max(difflib.SequenceMatcher(None, word, part).ratio() for part in parts)

    near = sorted(set(names), key=likeness, reverse=True)[:3]
    return f"no entry matches {pattern!r}; the nearest: {', '.join(near)}"
