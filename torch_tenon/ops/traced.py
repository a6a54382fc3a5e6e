"""What a trace takes for an op of the device, where PyTorch's own way does not fit it.

PyTorch registers some decompositions where gradients are taken, for every device. A trace meets
these before it asks the table of compositions. And some results that stand in for the device's lie
otherwise than eager code's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey
from torch._subclasses import FakeTensor, FakeTensorMode
from torch._subclasses.fake_impls import op_implementations_dict
from torch.utils._pytree import tree_leaves, tree_map_only

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


def lies_as_on_the_cpu(*ops: Any) -> None:
    """Has results of these ops lie in memory as eager code's do, which are the CPU's.

    PyTorch asks itself which of its kernels would run, and so which order the result has. For a
    device of others' it knows no kernel, and takes the dimensions in order. Nor does it ask whether
    all tensors are of one device: tensors of several raise RuntimeError, as in eager code.
    """
    for op in ops:
        op_implementations_dict[op] = _on_the_cpu(op_implementations_dict[op])


def _on_the_cpu(usual: Callable[..., Any]) -> Callable[..., Any]:
    def run(mode: FakeTensorMode, op: Any, *args: Any, **keywords: Any) -> Any:
        def moved(x: Tensor, device: torch.device | str) -> Tensor:
            return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=device)

        given = [x for x in tree_leaves((args, keywords)) if isinstance(x, FakeTensor)]
        devices = dict.fromkeys(x.fake_device for x in given)
        device = next((d for d in devices if d.type == "tenon"), None)
        if device is None:
            return usual(mode, op, *args, **keywords)
        if len(devices) > 1:
            raise RuntimeError(f"{op}: its tensors are on {' and '.join(map(str, devices))}")
        with mode:
            args, keywords = tree_map_only(Tensor, lambda x: moved(x, "cpu"), (args, keywords))
        found = usual(mode, op, *args, **keywords)
        with mode:
            return tree_map_only(Tensor, lambda x: moved(x, device), found)

    return run
