"""Settings of the process that decide what calls mean: what is recorded runs before they change."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from torch_tenon import _C
from torch_tenon.api import accelerator
from torch_tenon.device import target

#: PyTorch's functions in `torch._C` through which everything in Python changes them. What decides
#: which ops are called (autocast, backends of attention) is looked at before a call is recorded.
#: The engine of quantised ops does not matter: none of these is recorded. Flushing of denormals is
#: the calling thread's, and belongs to each call (csrc/pytorch/record/surroundings.h).
_SETTERS = (
    "_set_default_dtype",
    "_set_default_tensor_type",
    "_set_deterministic_algorithms",
    "_set_deterministic_fill_uninitialized_memory",
    "_set_float32_matmul_precision",
    "_set_fp32_precision_setter",
    "_set_onednn_allow_tf32",
    "_set_mkldnn_enabled",
    "_set_mkldnn_deterministic",
    "_set_nnpack_enabled",
    "_set_cpu_allow_fp16_reduced_precision_reduction",
)
#: What the calling thread alone looks at: nobody waits for the device.
_SETTERS_OF_THREADS = ("set_num_threads",)


def install() -> None:
    """Has windows submitted before each change, and run where the device is asynchronous. Called
    once, at import.

    A call that was recorded before a change made by other means runs under the settings of then as
    well (csrc/pytorch/record/surroundings.h), but these are the process's: other threads see them
    change while it runs.
    """
    for name in (*_SETTERS, *_SETTERS_OF_THREADS):
        before = getattr(torch._C, name, None)
        if before is None:  # this PyTorch has no such setting
            continue
        setter = _after_commit(name, before)
        for place in (torch._C, torch):
            if getattr(place, name, None) is before:
                setattr(place, name, setter)
        # Attributes of `torch.backends` hold the function itself.
        for flag in vars(type(torch.backends.mkldnn)).values():
            if getattr(flag, "setter", None) is before:
                flag.setter = setter


def changes() -> int:
    """How often the default dtype was set, to see whether that happened meanwhile."""
    return _changes


_changes = 0


def _after_commit(name: str, setter: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(setter)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        global _changes
        _C.commit_all()
        # Where it cannot, the device may run the host's kernels, later.
        if name in _SETTERS and not target().host_memory:
            for index in range(accelerator.device_count()):
                accelerator.current_stream(index).synchronize()
        is_default = name.startswith("_set_default")
        _changes += is_default
        try:
            return setter(*args, **kwargs)
        finally:
            _changes += is_default  # who has looked between these finds others

    return wrapper
