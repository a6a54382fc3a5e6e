"""Whether the device is the one to choose, and lists that are constants inside of functions."""

from __future__ import annotations

from types import FunctionType
from typing import Any

import torch

from torch_tenon.api import accelerator

_OTHERS = ("cuda", "xpu", "mps", "hpu")


def device_instead_of(device: torch.device) -> torch.device:
    """This thread's current device where a library has come down to the CPU; else its choice."""
    if device.type != "cpu" or not accelerator.is_available():
        return device
    return torch.device("tenon", accelerator.current_device())


def is_only_accelerator() -> bool:
    """Whether there is a device, and none of those that the libraries know."""
    modules = (getattr(torch, name, None) for name in _OTHERS)
    others = any(module is not None and module.is_available() for module in modules)
    return accelerator.is_available() and not others


def enter_in_list(function: Any, devices: tuple[str, ...]) -> None:
    """Adds the device to a list of names that is a constant of a function, as `x in ("a", "b")`.

    Raises LookupError where the function has no such list.
    """
    while not isinstance(function, FunctionType):
        function = function.__wrapped__
    code = function.__code__
    if devices not in code.co_consts:
        raise LookupError(f"{code.co_qualname} has no list {devices}")
    constants = tuple((*c, "tenon") if c == devices else c for c in code.co_consts)
    function.__code__ = code.replace(co_consts=constants)
