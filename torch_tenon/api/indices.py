"""What the functions of `torch.tenon` take for a device, and the index that it means."""

import torch

from torch_tenon import _C

Device = int | str | torch.device | None


def index_of(device: Device = None) -> int:
    """The index of a device; None is this thread's current one.

    Raises ValueError for a device of another type, RuntimeError where there is none of that index.
    """
    if device is None:
        return _C.current_device()
    if isinstance(device, int):
        return _C.check_index(device)
    device = torch.device(device)
    if device.type != "tenon":
        raise ValueError(f"Expected a tenon device, but got: {device}")
    return _C.check_index(-1 if device.index is None else device.index)
