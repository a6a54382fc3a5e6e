"""The asynchronous test target with a library, whose kernels are the host's on copies."""

from collections.abc import Callable
from typing import Any

import torch
from asynchronous import AsynchronousTarget
from torch.utils._pytree import tree_map_only

from torch_tenon.targets.cpu.backend import CpuBackend

aten = torch.ops.aten


def on_host(op: Callable[..., Any]) -> Callable[..., Any]:
    """A kernel of the library: what the host computes, laid out in another order of memory."""

    def kernel(*args: Any, **keywords: Any) -> Any:
        there = next(x.device for x in args if isinstance(x, torch.Tensor))
        host, named = tree_map_only(torch.Tensor, lambda t: t.cpu(), (args, keywords))
        made = op(*host, **named)
        return tree_map_only(torch.Tensor, lambda t: t.mT.contiguous().mT.to(there), made)

    return kernel


class WithoutProducts(CpuBackend):
    """Kernels of loops alone."""

    product_dtypes = frozenset()


class WithLibrary(AsynchronousTarget):
    """Some products, and ops of one, two and three results."""

    library = {  # noqa: RUF012
        "aten::mm": on_host(aten.mm.default),
        "aten::_softmax": on_host(aten._softmax.default),
        "aten::topk": on_host(aten.topk.default),
        "aten::native_layer_norm": on_host(aten.native_layer_norm.default),
    }

    def __init__(self) -> None:
        super().__init__()
        self.backend = WithoutProducts()
