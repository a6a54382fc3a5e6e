"""What the methods of a program share: parameters, constants, and buffers that runs change."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from torch_tenon.exporting.errors import ExportError
from torch_tenon.exporting.held import Held, length_of, overlap

LINE = 64  # bytes that a weight's place is a multiple of
ZEROS = -1


@dataclass
class Weight:
    """The memory of a tensor of the model, as elements in the order in which they lie."""

    name: str
    tensor: Tensor  # of one dimension where the model's own is not dense and row-major
    offset: int = 0

    @property
    def nbytes(self) -> int:
        """Its bytes."""
        return self.tensor.numel() * self.tensor.dtype.itemsize


@dataclass
class State:
    """A buffer that runs change. It begins as a weight, or as zeros (`ZEROS`)."""

    name: str
    tensor: Tensor
    weight: int


@dataclass
class Shared:
    """Weights and state of a program, each once, whatever number of methods and names it has."""

    weights: list[Weight] = field(default_factory=list)
    states: list[State] = field(default_factory=list)
    _weights: dict[tuple[object, ...], int] = field(default_factory=dict)
    _states: dict[tuple[object, ...], int] = field(default_factory=dict)

    def add(self, methods: Iterable[Iterable[Held]]) -> None:
        """Enters what the methods hold: what one of them writes is state for all of them."""
        every = [h for held in methods for h in held]
        for held in every:
            if held.is_written and key_of(held.tensor) not in self._states:
                self._states[key_of(held.tensor)] = len(self.states)
                value = in_memory(held)
                first = self._weight(held) if _bytes_of(value).any() else ZEROS
                self.states.append(State(held.name, value, first))
        for held in every:
            if key_of(held.tensor) not in self._states:
                self._weight(held)

    def _weight(self, held: Held) -> int:
        key = key_of(held.tensor)
        if key not in self._weights:
            self._weights[key] = len(self.weights)
            self.weights.append(Weight(held.name, in_memory(held)))
        return self._weights[key]

    def place_of(self, held: Held) -> tuple[bool, int]:
        """Whether it is state, and which one of the states or of the weights."""
        key = key_of(held.tensor)
        return (True, self._states[key]) if key in self._states else (False, self._weights[key])

    def lay_out(self) -> int:
        """Gives each weight its offset; the bytes of all."""
        at = 0
        for weight in self.weights:
            weight.offset = at
            at += -(-weight.nbytes // LINE) * LINE
        return at


def in_memory(held: Held) -> Tensor:
    """A tensor's memory on the host as one that is dense: itself, or its elements one by one. What
    a plan reads by its strides lies there as it did. Raises ExportError for one without a value."""
    x = held.tensor
    if not held.has_value:
        raise ExportError(f"the model's {held.name!r} has no value: load its weights first")
    if not x.is_contiguous():
        x = x.as_strided((length_of(x),), (1,))
    return x.resolve_conj().resolve_neg().cpu()


def key_of(x: Tensor) -> tuple[object, ...]:
    """What tells a tensor of the model from others."""
    lies = (x.device, x.data_ptr(), x.dtype, tuple(x.shape), tuple(x.stride()))
    return (*lies, x.is_conj(), x.is_neg())


def share_state(methods: Iterable[Iterable[Held]]) -> None:
    """Marks as written what another method writes. Raises ExportError for what is another view of
    such memory: state is one tensor in all methods."""
    every = [(h, key_of(h.tensor)) for held in methods for h in held]
    states = {key: h for h, key in every if h.is_written}
    for held, key in every:
        held.is_written = key in states
        for other, state in states.items():
            if key != other and overlap(held, state):
                raise ExportError(
                    f"the model's {held.name!r} lies in the memory of the state {state.name!r}, "
                    "which runs change, and is another view of it: take such views within the "
                    "methods, of the buffer that is written"
                )


def _bytes_of(x: Tensor) -> Tensor:
    return x.cpu().contiguous().reshape(-1).view(torch.uint8)
