"""What device memory holds before a call: nothing that the call could pass off as its result."""

from __future__ import annotations


def fill_free_memory() -> None:
    """Fills what is free on each device with bytes of all ones, NaN in each floating-point dtype.

    The first call of a kind leaves the right result in memory that it gives back, and the next call
    gets just that: a kernel that writes nothing would pass.
    """
    from torch_tenon import _C

    for device in range(_C.device_count()):
        _C.fill_free_memory(device)
