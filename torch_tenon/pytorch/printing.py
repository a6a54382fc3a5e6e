"""Printing of tensors that raises: an error of a late call, no memory, an interrupt."""

import functools
import types
from typing import Any

import torch
from torch import _tensor_str


def _without_locals_of(printing: types.CodeType, error: BaseException) -> None:
    traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code is printing:
            traceback.tb_frame.clear()
        traceback = traceback.tb_next


def install() -> None:
    """Ends what PyTorch's printing begins, also where it raises. Called once, at import.

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
