"""Device memory over time, and who owns it at the peak."""

from __future__ import annotations

import gc
import time
from collections import defaultdict
from collections.abc import Iterable

import torch
from torch._C._functorch import is_functorch_wrapped_tensor
from torch._subclasses.fake_tensor import FakeTensor

from torch_tenon.api import accelerator

MOST_SAMPLES = 4096
_RISE = 1.15  # of the peak, from which on its owners are looked for again
_LEAST = 1 << 20  # bytes, below which nobody asks


class Memory:
    """Samples of what is allocated and reserved, all devices together."""

    def __init__(self) -> None:
        self.samples: list[tuple[float, int, int]] = []  # seconds, allocated, reserved
        self.every = 1
        self.peak = 0
        self.owners: dict[str, int] = {}  # bytes at the highest peak that was looked at
        self._looks = 0
        self._looked_at = 0

    def look(self, begin: int) -> None:
        """Takes a sample; `begin` is when the run began, in nanoseconds since 1970."""
        self._looks += 1
        devices = range(accelerator.device_count())
        allocated = sum(accelerator.memory_allocated(k) for k in devices)
        self.peak = max(self.peak, allocated)
        if allocated > max(_RISE * self._looked_at, _LEAST):
            self._looked_at = allocated
            self.owners = owners(allocated)
        if self._looks % self.every:
            return
        reserved = sum(accelerator.memory_reserved(k) for k in devices)
        self.samples.append(((time.time_ns() - begin) / 1e9, allocated, reserved))
        if len(self.samples) > MOST_SAMPLES:
            self.samples = self.samples[::2]
            self.every *= 2


def owners(allocated: int) -> dict[str, int]:
    """Bytes of the device by what holds them: the storages of Python's tensors, and the rest."""
    found: dict[str, int] = defaultdict(int)
    seen: set[int] = set()
    # By their types: asking an object for its class may run code of its own.
    objects = gc.get_objects()
    # Tensors that a compiler traces with have no memory.
    tensors = [
        x
        for x in objects
        if issubclass(type(x), torch.Tensor) and not issubclass(type(x), FakeTensor)
    ]
    parameters = [x for x in tensors if issubclass(type(x), torch.nn.Parameter)]
    gradients = [x.grad for x in tensors if x.is_leaf and x.grad is not None]
    optimizers = [x for x in objects if issubclass(type(x), torch.optim.Optimizer)]
    del objects
    state = [
        value
        for optimizer in optimizers
        for one in list(optimizer.state.values())
        for value in (one.values() if isinstance(one, dict) else ())
        if isinstance(value, torch.Tensor)
    ]
    kinds: list[tuple[str, Iterable[torch.Tensor]]] = [
        ("parameters", parameters),
        ("gradients", gradients),
        ("optimizer state", state),
        ("other tensors", tensors),
    ]
    for kind, members in kinds:
        for tensor in members:
            if tensor.device.type != "tenon" or tensor.layout != torch.strided:
                continue
            if is_functorch_wrapped_tensor(tensor):
                continue  # a transformation's: the memory is that of the tensor in it
            storage = tensor.untyped_storage()
            if storage._cdata not in seen:
                seen.add(storage._cdata)
                found[kind] += storage.nbytes()
    rest = allocated - sum(found.values())
    if rest > 0:
        found["what backward and windows keep"] = rest
    return dict(found)
