"""Printing of tensors: by the CPU, and what is left where it raises (no memory, an interrupt)."""

import functools
import types
from typing import Any

import torch
from torch import _tensor_str

MOST_BYTES = 1 << 20  # copied to the CPU: about as long as the ops take that printing calls


def _without_locals_of(printing: types.CodeType, error: BaseException) -> None:
    traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code is printing:
            traceback.tb_frame.clear()
        traceback = traceback.tb_next


def install() -> None:
    """Installs what PyTorch's printing needs of the device. Called once, at import."""
    _ends_where_it_raises()
    _prints_by_the_cpu()


def _prints_by_the_cpu() -> None:
    """PyTorch asks some twenty small ops, and reads their results one by one, for where the point
    goes and how wide a column is. It copies the tensors of some devices to the CPU first."""
    of_pytorch = _tensor_str._tensor_str

    @functools.wraps(of_pytorch)
    def numbers_of(self: torch.Tensor, indent: int) -> str:
        is_plain = type(self) in (torch.Tensor, torch.nn.Parameter)
        if is_plain and self.device.type == "tenon" and self.nbytes <= MOST_BYTES:
            self = self.detach().cpu()
        text: str = of_pytorch(self, indent)
        return text

    _tensor_str._tensor_str = numbers_of


def _ends_where_it_raises() -> None:
    """Ends what PyTorch's printing begins, also where it raises.

    PyTorch switches functorch off for a thread as long as a local of `torch._tensor_str._str` is
    alive, and an error keeps that with its traceback: `vmap` and `flex_attention` would fail as
    long as somebody keeps the error, and for good when the locals of two errors end in the wrong
    order.
    """
    of_pytorch = _tensor_str._str

    @functools.wraps(of_pytorch)
    def _str(self: torch.Tensor, **kwargs: Any) -> str:
        try:
            return of_pytorch(self, **kwargs)
        except BaseException as error:
            _without_locals_of(of_pytorch.__code__, error)
            raise

    _tensor_str._str = _str
