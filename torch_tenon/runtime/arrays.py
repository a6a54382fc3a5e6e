"""What goes into a program and comes out of it: PyTorch's tensors, NumPy's arrays, or whatever
gives DLPack."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from torch_tenon.runtime.dtypes import NUMBERS, dtype_name

# An address for no bytes: null would ask the library for memory, which nobody frees.
NOWHERE = 64


class Arrays:
    """NumPy's arrays."""

    def taken(self, x: Any) -> tuple[Any, int, Sequence[int], int, int]:
        """An input as something dense that is to be kept while it is used, with its dtype, sizes,
        address and bytes. Raises TypeError for what is no array."""
        if not isinstance(x, np.ndarray | np.generic | int | float | bool | list | tuple):
            if not hasattr(x, "__dlpack__"):
                raise TypeError(f"{type(x).__name__} is no array: it gives no DLPack")
            x = np.from_dlpack(x)
        if isinstance(x, np.ma.MaskedArray):
            raise TypeError("a masked array, of which a program would see all: give x.filled(...)")
        dense = np.ascontiguousarray(x).reshape(np.shape(x))
        if not dense.dtype.isnative:
            dense = dense.astype(dense.dtype.newbyteorder("="))
        number = NUMBERS.get(dense.dtype.name)
        if number is None:
            raise TypeError(f"an array of {dense.dtype}, which programs do not have")
        return dense, number, dense.shape, dense.ctypes.data, dense.nbytes

    def made(self, dtype: int, sizes: Sequence[int]) -> tuple[Any, int, int]:
        """A fresh output, its address and bytes."""
        made = np.empty(tuple(sizes), numpy_dtype(dtype_name(dtype)))
        return made, made.ctypes.data, made.nbytes


def numpy_dtype(name: str) -> Any:
    """NumPy's dtype of that name, or the one of ml_dtypes. Raises TypeError where neither is."""
    try:
        return np.dtype(name)
    except TypeError:
        pass
    try:
        import ml_dtypes  # type: ignore[import-not-found]
    except ImportError:
        raise TypeError(
            f"the program has {name}, which NumPy does not have: install ml_dtypes, or give "
            "PyTorch's tensors"
        ) from None
    return np.dtype(getattr(ml_dtypes, name))


class Tensors(Arrays):
    """PyTorch's tensors, of the host."""

    def __init__(self) -> None:
        self.torch: Any = sys.modules["torch"]

    def taken(self, x: Any) -> tuple[Any, int, Sequence[int], int, int]:
        """As for arrays; what is no tensor is taken as one."""
        if not isinstance(x, self.torch.Tensor):
            return super().taken(x)
        if x.layout is not self.torch.strided or x.is_meta:
            raise TypeError(f"a tensor of {'meta' if x.is_meta else x.layout}, and no dense one")
        dense = x.detach().cpu().contiguous().resolve_conj().resolve_neg()
        number = NUMBERS.get(str(dense.dtype).removeprefix("torch."))
        if number is None:
            raise TypeError(f"a tensor of {dense.dtype}, which programs do not have")
        return dense, number, dense.shape, dense.data_ptr(), dense.nbytes

    def made(self, dtype: int, sizes: Sequence[int]) -> tuple[Any, int, int]:
        """A tensor of the host."""
        kind = getattr(self.torch, dtype_name(dtype))
        made = self.torch.empty(tuple(sizes), dtype=kind, device="cpu")
        return made, made.data_ptr() or NOWHERE, made.nbytes


def kind_of(inputs: Sequence[Any]) -> Arrays:
    """What results are: tensors where an input is one, else arrays."""
    torch = sys.modules.get("torch")
    if torch is not None and any(isinstance(x, torch.Tensor) for x in inputs):
        return Tensors()
    return Arrays()
