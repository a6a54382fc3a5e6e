"""Which function a trace takes for an op of the device, where PyTorch decomposes it too early.

PyTorch registers some decompositions where gradients are taken, for every device. A trace meets
these before it asks the table of compositions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch._C import DispatchKey
from torch._subclasses import FakeTensor

_GRADIENTS = DispatchKey.AutogradPrivateUse1
_IMPLICIT = DispatchKey.CompositeImplicitAutograd


def above_gradients(op: Any, function: Callable[..., Any]) -> None:
    """Has tensors of the device go through `function` instead of PyTorch's decomposition of `op`.
    What it returns NotImplemented for stays the op itself."""

    def run(*args: Any, **keywords: Any) -> Any:
        found = function(*args, **keywords)
        return (
            op._op_dk(DispatchKey.Autograd, *args, **keywords) if found is NotImplemented else found
        )

    op.py_impl(_GRADIENTS)(run)
    implicit = op.py_kernels.get(_IMPLICIT)
    if implicit is None:
        return

    def decompose(*args: Any, **keywords: Any) -> Any:
        traced = any(isinstance(a, FakeTensor) and a.device.type == "tenon" for a in args)
        return (function if traced else implicit)(*args, **keywords)

    op.py_kernels[_IMPLICIT] = decompose
    op._dispatch_cache.clear()


def stays_whole(*ops: Any) -> None:
    """Has traces of the device meet these ops, as the table of compositions has them."""
    for op in ops:
        above_gradients(op, lambda *args, **keywords: NotImplemented)
