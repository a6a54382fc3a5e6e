"""Quantised tensors that are made like one of the device."""

import functools
from typing import Any

import torch


def install() -> None:
    """Has `torch.empty_quantized` make its tensor where the one that it is given is.

    PyTorch's Python binding takes the CPU for the device that nobody named, so that the op cannot
    tell. Called once, at import.
    """
    of_pytorch = torch.empty_quantized

    @functools.wraps(of_pytorch)
    def empty_quantized(size: Any, qtensor: torch.Tensor, **options: Any) -> torch.Tensor:
        if options.get("device") is None and qtensor.device.type == "tenon":
            options["device"] = qtensor.device
        return of_pytorch(size, qtensor, **options)

    torch.empty_quantized = empty_quantized
