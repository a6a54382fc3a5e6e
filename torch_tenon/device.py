"""The target behind the device `tenon`, for everybody who asks for it.

This is state and no more: `register.py` loads the target and puts it here. So that every module may
ask, this one imports none of the others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from torch_tenon.compiler.backend import Backend
    from torch_tenon.targets.target import Target

_target: Target | None = None
_load_host: Callable[[], Target] | None = None


def set_target(target: Target, load_host: Callable[[], Target]) -> None:
    """Puts a target behind the device, for good. `load_host` gives the target that is the host,
    which is loaded when somebody compiles for it."""
    global _target, _load_host
    assert _target is None, "a process has one target"
    _target, _load_host = target, load_host


def is_set() -> bool:
    """Whether there is a target: the device is registered, or is being registered."""
    return _target is not None


def target() -> Target:
    """The target behind the device."""
    assert _target is not None, "the device is registered when torch_tenon is imported"
    return _target


def backend(device: torch.device | None = None) -> Backend | None:
    """The part of the compiler that is the target's, None where it has none or there is no target.

    For a `device` that is not of the target's, the host: what compiles for the host.
    """
    if device is not None and device.type != "tenon":
        assert _load_host is not None, "the device is registered when torch_tenon is imported"
        return _load_host().backend
    return None if _target is None else _target.backend
