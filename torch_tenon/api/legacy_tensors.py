"""`torch.tenon.FloatTensor` and its like: the types that older programs make tensors with."""

from __future__ import annotations

from typing import Any

import torch

NAMES = (
    "BFloat16Tensor",
    "BoolTensor",
    "ByteTensor",
    "CharTensor",
    "DoubleTensor",
    "FloatTensor",
    "HalfTensor",
    "IntTensor",
    "LongTensor",
    "ShortTensor",
)


class LegacyTensorType(type):
    """The tensors of one dtype on the device, as a type.

    Calling it makes one on the current device, of given sizes, of a sequence or of a NumPy array,
    as `torch.FloatTensor` does on the host; `Tensor.type` takes it.
    """

    dtype: torch.dtype

    def __instancecheck__(cls, instance: object) -> bool:
        return (
            isinstance(instance, torch.Tensor)
            and instance.device.type == "tenon"
            and instance.dtype == cls.dtype
        )

    def __call__(cls, *args: Any) -> torch.Tensor:
        """Raises TypeError for a tensor of another type, as for arguments that make none."""
        if len(args) == 1 and isinstance(args[0], cls):
            return args[0].detach()
        host = getattr(torch, cls.__name__.rpartition(".")[2])
        return host(*args).to("tenon")


def legacy_tensor_type(name: str) -> LegacyTensorType:
    """The type of one of NAMES. `Tensor.type` finds the dtype by the type's full name."""
    dtype = getattr(torch, name).dtype
    return LegacyTensorType(f"torch.tenon.{name}", (), {"dtype": dtype})
