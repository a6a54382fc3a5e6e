"""Copies of a sample on a device, exact down to strides, offsets and shared storages."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence

from .accuracy import wide_dtype


class Placement:
    """Copies the tensors of a sample to `device`; call it once per argument of the sample.

    Tensors that are one object, or that share a storage, are so in the copy too. The device under
    test only has to copy contiguous tensors and to make `as_strided` views of them. With `grad`,
    copies require gradients where the originals do; with `wide`, floating-point tensors and dtypes
    become those of double precision.
    """

    def __init__(self, device: str, *, grad: bool = False, wide: bool = False) -> None:
        self.device = torch.device(device)
        self.grad = grad
        self.wide = wide
        self._tensors: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._storages: dict[int, tuple[torch.UntypedStorage, torch.Tensor]] = {}
        self._generators: dict[int, tuple[torch.Generator, torch.Generator]] = {}

    def __call__(self, value: Any) -> Any:
        """`value` with every tensor, device and generator in it moved."""
        return _rebuild(value, self._leaf)

    def apart(self, value: Any) -> Any:
        """`value` moved in the same way, but without gradients and not among `tensors()`."""
        return Placement(self.device.type, wide=self.wide)(value)

    def dtype(self, dtype: torch.dtype) -> torch.dtype:
        """What `dtype` is in this placement."""
        return wide_dtype(dtype) if self.wide else dtype

    def generators(self) -> tuple[torch.Generator, ...]:
        """The copies of generators."""
        return tuple(copied for _, copied in self._generators.values())

    def tensors(self) -> list[torch.Tensor]:
        """The copies, in the order met; two placements of one sample agree in it."""
        return [copied for _, copied in self._tensors.values()]

    def _leaf(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            if id(value) not in self._tensors:
                self._tensors[id(value)] = (value, self._tensor(value))
            return self._tensors[id(value)][1]
        if isinstance(value, torch.device) and value.type == "cpu":
            return self.device
        if isinstance(value, torch.Generator):
            if id(value) not in self._generators:
                generator = torch.Generator(self.device)
                generator.manual_seed(value.initial_seed())
                self._generators[id(value)] = (value, generator)
            return self._generators[id(value)][1]
        if isinstance(value, torch.dtype):
            return self.dtype(value)
        if isinstance(value, torch.nn.Module):
            return copy.deepcopy(value).to(self.device)
        return value

    def _tensor(self, original: torch.Tensor) -> torch.Tensor:
        grad = self.grad and original.requires_grad
        tensor = original.detach()
        if tensor.device.type != "cpu":
            # An error input that mixes devices: only what is on the CPU stands for the device.
            return tensor
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_nested:
            moved = tensor.clone().to(self.device)
            moved = moved.to(self.dtype(moved.dtype)) if self.wide else moved
        else:
            conjugate, negative = tensor.is_conj(), tensor.is_neg()
            tensor = tensor.conj() if conjugate else tensor
            tensor = torch._neg_view(tensor) if negative else tensor
            flat = self._storage(tensor)
            moved = flat.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())
            moved = moved.conj() if conjugate else moved
            moved = torch._neg_view(moved) if negative else moved
        # `data` drops autograd's note that this is a view, which the original is not either.
        return moved.data.requires_grad_(grad)

    def _storage(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in self._storages:
            whole = torch.empty(0, dtype=tensor.dtype)
            whole.set_(storage, 0, (storage.nbytes() // tensor.element_size(),), (1,))
            moved = whole.clone() if self.device.type == "cpu" else whole.to(self.device)
            moved = moved.to(self.dtype(moved.dtype)) if self.wide else moved
            self._storages[storage._cdata] = (storage, moved)
        flat = self._storages[storage._cdata][1]
        dtype = self.dtype(tensor.dtype)
        return flat if flat.dtype == dtype else flat.view(dtype)


def _rebuild(value: Any, leaf: Callable[[Any], Any]) -> Any:
    if type(value) in (list, tuple):
        return type(value)(_rebuild(item, leaf) for item in value)
    if isinstance(value, PackedSequence):
        # PyTorch keeps the batch sizes on the CPU whatever the device.
        rest = (leaf(value.sorted_indices), leaf(value.unsorted_indices))
        return PackedSequence(leaf(value.data), value.batch_sizes, *rest)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_rebuild(item, leaf) for item in value))
    if type(value) is dict:
        return {k: _rebuild(item, leaf) for k, item in value.items()}
    if isinstance(value, slice):
        return slice(*(_rebuild(item, leaf) for item in (value.start, value.stop, value.step)))
    # `x.to("cpu")` has no keyword.
    if isinstance(value, str) and value == "cpu":
        return leaf(torch.device("cpu"))
    return leaf(value)


def tensors_in(value: Any) -> list[torch.Tensor]:
    """The tensors in nested lists, tuples and dicts, in order; one object may come twice."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, PackedSequence):
        value = [value.data]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in tensors_in(item)]
    return []


def spread(tensor: torch.Tensor) -> torch.Tensor:
    """A non-contiguous tensor of the same shape whose gaps hold a value that nobody may read."""
    gap: float | bool = True if tensor.dtype == torch.bool else 12
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        gap = float("nan")
    pairs = torch.full((*tensor.shape, 2), gap, dtype=tensor.dtype, device=tensor.device)
    pairs[..., 1] = tensor.detach()
    return pairs[..., 1]
