"""Settings of the process that decide what calls mean: what is recorded runs before they change."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from torch_tenon import _C
from torch_tenon.device import target

#: PyTorch's functions in `torch._C` through which everything in Python changes them.
_SETTERS = (
    "_set_default_dtype",
    "_set_default_tensor_type",
    "_set_deterministic_algorithms",
)


def install() -> None:
    """Has windows submitted before each change, and run where the device is asynchronous. Called
    once, at import.

    A call that was recorded before a change made by other means runs under the settings of then as
    well (csrc/record/surroundings.h), but these are the process's: other threads see them change
    while it runs.
    """
    for name in _SETTERS:
        setattr(torch._C, name, _after_commit(getattr(torch._C, name)))


def changes() -> int:
    """How often one of them was set, to see whether that happened meanwhile."""
    return _changes


_changes = 0


def _after_commit(setter: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(setter)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        global _changes
        _C.commit_all()
        if not target().host_memory:  # the device may run the host's kernels, later
            from torch_tenon import accelerator  # it needs the device

            for index in range(accelerator.device_count()):
                accelerator.current_stream(index).synchronize()
        _changes += 1
        return setter(*args, **kwargs)

    return wrapper
