"""`torch.amp.GradScaler()` without a device scales for this one, where there is no CUDA."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import torch

_NO_DEVICE = "_tenon_chosen"  # in a scaler for which nobody named a device


def install() -> None:
    """Changes the device that a gradient scaler is for where none is named. Called once, at import.

    PyTorch takes CUDA, and switches the scaler off where CUDA is not. A scaler that then scales a
    tensor of another device first, as a program does that trains on the CPU, is switched off as
    PyTorch has it.
    """
    scaler = torch.amp.GradScaler
    scaler.__init__ = _for_the_device(scaler.__init__)  # type: ignore[method-assign]
    scaler.scale = _off_elsewhere(scaler.scale)  # type: ignore[method-assign]


def _for_the_device(init: Any) -> Any:
    @functools.wraps(init)
    def wrapper(self: torch.amp.GradScaler, *args: Any, **kwargs: Any) -> None:
        chosen = not args and "device" not in kwargs and not torch.cuda.is_available()
        if chosen:
            kwargs["device"] = "tenon"
        init(self, *args, **kwargs)
        if chosen:
            setattr(self, _NO_DEVICE, True)

    return wrapper


def _off_elsewhere(scale: Any) -> Any:
    @functools.wraps(scale)
    def wrapper(self: torch.amp.GradScaler, outputs: Any) -> Any:
        if self._enabled and self.__dict__.pop(_NO_DEVICE, False):
            first = outputs[0] if isinstance(outputs, (list, tuple)) and outputs else outputs
            if isinstance(first, torch.Tensor) and first.device.type != "tenon":
                warnings.warn(
                    "torch.amp.GradScaler() was made without a device and is for tenon, but scales "
                    f"a tensor of {first.device.type}. Disabling; name the device to scale for it.",
                    stacklevel=2,
                )
                self._enabled = False
        return scale(self, outputs)

    return wrapper
