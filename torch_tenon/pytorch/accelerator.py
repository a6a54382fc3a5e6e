"""What `torch.accelerator` asks PyTorch's core, and the core cannot tell of this device."""

from typing import Any

import torch

from torch_tenon.api import accelerator


def install() -> None:
    """Answers for the core. Called once, at import.

    The core asks a device's guard for its capability, which this one's leaves to Python, and looks
    for a caching allocator of pinned memory, which this device does not have, and crashes.
    """
    torch._C._accelerator_getDeviceCapability = _capability
    torch._C._accelerator_emptyHostCache = _empty_host_cache


def _capability(device_index: int) -> dict[str, Any]:
    return accelerator.get_device_capability(device_index)


def _empty_host_cache() -> None:
    """Pinned memory goes back to the system as soon as its tensor dies: nothing is cached."""
