"""A process that runs calls of the argument space, with a fault of each kind planted in an op."""

from typing import Any

import torch
from torch import Tensor

from torch_tenon.ops.lowerings import load_all
from torch_tenon.ops.lowerings.table import LOWERINGS
from torch_tenon.testing.space import worker

load_all()
_sin = LOWERINGS["aten.sin"]


def _wrong_value(b: Any, x: Any) -> Any:
    return LOWERINGS["aten.cos"](b, x)


def _unchecked(b: Any, x: Any, dim: int, index: Any) -> Any:
    """Any index is of some row."""
    inside = LOWERINGS["aten.remainder"](b, index, x.sizes[dim] if x.sizes else 1)
    return _index_select(b, x, dim, inside)


_index_select = LOWERINGS["aten.index_select"]
LOWERINGS["aten.sin"] = _wrong_value
LOWERINGS["aten.index_select"] = _unchecked

LIBRARY = torch.library.Library("aten", "IMPL")


def _on_host(op: Any, x: Tensor) -> Tensor:
    result: Tensor = op(x.cpu())
    return result


def plant(name: str, kernel: Any) -> None:
    """A kernel of the device's for an op of one argument."""
    LIBRARY.impl(name, kernel, "PrivateUse1", allow_override=True)


def _wider(x: Tensor) -> Tensor:
    return torch.ops.aten.cos(x.cpu()).double().to(x.device)


def _transposed(x: Tensor) -> Tensor:
    y = torch.ops.aten.tan(x.cpu())
    back = torch.empty(y.shape[::-1], dtype=y.dtype).permute(*range(y.dim())[::-1])
    return back.copy_(y).to(x.device)


def _itself(x: Tensor) -> Tensor:
    return x


def _writes(x: Tensor) -> Tensor:
    y = torch.ops.aten.erf(x.cpu()).to(x.device)
    x.zero_()
    return y


plant("cos", _wider)
plant("tan", _transposed)
plant("ceil", _itself)
plant("erf", _writes)

if __name__ == "__main__":
    worker.main()
