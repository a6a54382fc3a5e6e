"""Groups that a target has no code for, run by the host beside those that it has.

The host's backend writes the kernel. A plan calls it as an op on copies of the memory that it
reads, and what it writes goes back to the device: one step, and not the whole program.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch

from torch_tenon import device
from torch_tenon.compiler.bounded import BoundedCache
from torch_tenon.compiler.kernel import Kernel, calls_of
from torch_tenon.compiler.schedule import Group
from torch_tenon.ir.index import Symbol, var
from torch_tenon.ir.program import Extern
from torch_tenon.ir.values import Buffer, Layout, Storage, Stored

MOST_FUNCTIONS = 256  # kept for plans that run again

_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
_functions = BoundedCache[str, Any]("kernels on the host", MOST_FUNCTIONS)  # by source


def run(
    source: str, memory: Sequence[torch.Tensor], numbers: Sequence[int], written: Sequence[int]
) -> list[torch.Tensor]:
    """What `tenon::host_kernel` does (`csrc/pytorch/ops/host_kernel.cpp`): a kernel over bytes, of
    which those that are written come back as new tensors."""
    kept = [t.clone() if k in written else t for k, t in enumerate(memory)]
    pointers = (ctypes.c_void_p * len(kept))(*(t.data_ptr() for t in kept))
    function, code = _function(source)
    function(pointers, (ctypes.c_int64 * len(numbers))(*numbers), None)
    del code  # which another thread may have let go of meanwhile
    return [kept[k] for k in written]


def _function(source: str) -> Any:
    """What runs a kernel, and what keeps its code."""
    # A plan may come from a file that another process has written.
    found = _functions.get(source)
    if found is None:
        backend = device.backend(torch.device("cpu"))
        assert backend is not None
        kernel = Kernel(source, [], [], "host_kernel", 0, "loop", 0, [])
        (handle,) = backend.compile([kernel])
        found = _FUNCTION(handle), handle
        _functions.put(source, found)
    return found


def call_of(group: Group, kept: set[Buffer]) -> Extern:
    """A call that runs a group on the host. Raises NotImplementedError for one with checks, whose
    errors a call could not tell apart, and what the host's backend raises."""
    backend = device.backend(torch.device("cpu"))
    assert backend is not None
    kernel: Kernel = backend.kernel(group, kept)
    if kernel.checks:
        raise NotImplementedError(
            f"{kernel.origin}: a kernel with checks does not run on the host in a plan"
        )
    _function(kernel.source)
    outputs = [b for n in group.nodes() for b in n.outputs]
    stores = {b.storage for b in outputs}
    memory = [_bytes_of(s) for s in kernel.storages]
    written = [k for k, s in enumerate(kernel.storages) if s in stores]
    numbers = [var(n) if isinstance(n, Symbol) else n for n in kernel.sizes]
    call = Extern(
        name=kernel.origin,
        target=torch.ops.tenon.host_kernel.default,
        arguments=(kernel.source, memory, numbers, written),
        keywords={},
        results=[memory[k] for k in written],
        origin=kernel.origin,
    )
    call.reads = [m.buffer for m in memory]
    call.calls = calls_of(group)
    return call


def _bytes_of(storage: Storage) -> Stored:
    buffer = Buffer(storage.name, torch.uint8, storage, None, 0)
    return Stored(buffer, Layout((storage.nbytes,), (1,)))
