"""DLPack: tensors of the device given to other libraries and taken from them, without a copy."""

import enum

import torch
from torch.utils.dlpack import DLDeviceType

from torch_tenon import _C

_of_pytorch = torch.Tensor.__dlpack_device__


def _dlpack_device(self: torch.Tensor) -> tuple[enum.IntEnum, int]:
    if type(self) in (torch.Tensor, torch.nn.Parameter) and self.device.type == "tenon":
        if self.layout is torch.strided:
            _C.share_memory(self)  # whoever asks may look at it, and write it, at any time
        return DLDeviceType.kDLExtDev, self.device.index
    return _of_pytorch(self)


def install() -> None:
    """Tells DLPack which device a tensor is on. Called once, at import.

    PyTorch's core passes tensors of a device behind PrivateUse1 on, as an extension device, but its
    `Tensor.__dlpack_device__` knows such a device by its first name only, not by the one it has.
    """
    torch.Tensor.__dlpack_device__ = _dlpack_device  # type: ignore[method-assign]
