"""`torch.nn.DataParallel` where the device is: the module as it is, on whatever device it is."""

from __future__ import annotations

import importlib
from typing import Any


def install() -> None:
    """Tells DataParallel of no device where this is what it would find. Called once, at import.

    It would move the module there, one of the CPU too, and divide batches by functions that
    PyTorch has for CUDA alone. Without a device it calls the module, as on a machine that has none.
    """
    # The name within `torch.nn.parallel` is that of a function.
    module: Any = importlib.import_module("torch.nn.parallel.data_parallel")
    find = module._get_available_device_type

    def device_type() -> str | None:
        found: str | None = find()
        return None if found == "tenon" else found

    module._get_available_device_type = device_type
