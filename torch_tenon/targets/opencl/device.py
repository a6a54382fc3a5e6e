"""What kernels are written for: the facts of an OpenCL device that their layout depends on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch_tenon import config

if TYPE_CHECKING:
    import torch

MOST_ITEMS = 256  # of a work-group that does one thing together
GPU_LOCAL = 1 << 15  # bytes of local memory that any GPU has


@dataclass(frozen=True)
class Shape:
    """A device as its kernels see it.

    units      compute units, which run work-groups side by side
    items      work-items of a work-group that does one thing together, a power of two; 1 where a
               work-item has a processor's vectors to itself, as on a CPU
    most_items work-items of a work-group at most
    lanes      32-bit numbers in a vector
    local      bytes of local memory
    parameters bytes of a kernel's arguments
    doubles    whether there is float64
    """

    units: int
    items: int
    most_items: int
    lanes: int
    local: int
    parameters: int
    doubles: bool

    @property
    def shares(self) -> int:
        """Shares that the stores of a scatter are divided into: a power of two."""
        return 1 << max(0, (self.units - 1).bit_length())


def shape_of(cl: Any, device: Any) -> Shape:
    """The shape of a device of pyopencl's, or what TENON_OPENCL_LAYOUT takes it for."""
    wanted = config.OPENCL_LAYOUT.read()
    alone = wanted == "cpu" or (wanted == "auto" and bool(device.type & cl.device_type.CPU))
    most_items, local = device.max_work_group_size, device.local_mem_size
    if device.type & cl.device_type.CPU and not alone:  # its local memory is any memory
        local = min(local, GPU_LOCAL)
    return Shape(
        units=device.max_compute_units,
        items=1 if alone else min(MOST_ITEMS, 1 << (most_items.bit_length() - 1)),
        most_items=most_items,
        lanes=max(1, device.native_vector_width_float),
        local=local,
        parameters=device.max_parameter_size,
        doubles="cl_khr_fp64" in device.extensions.split(),
    )


def atomics_of(device: Any) -> dict[torch.dtype, frozenset[str]]:
    """What a device of pyopencl's combines in one step. 64 bits are by two extensions."""
    import torch

    extensions = device.extensions.split()
    wide = set()
    if "cl_khr_int64_base_atomics" in extensions:
        wide |= {"sum"}
    if "cl_khr_int64_extended_atomics" in extensions:
        wide |= {"max", "min", "xor"}
    narrow = frozenset({"sum", "max", "min", "xor"})
    return {
        **dict.fromkeys((torch.int32, torch.uint32), narrow),
        **dict.fromkeys((torch.int64, torch.uint64), frozenset(wide)),
    }
