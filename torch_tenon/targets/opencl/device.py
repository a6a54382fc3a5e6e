"""What kernels are written for: the facts of an OpenCL device that their layout depends on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Shape:
    """A device as its kernels see it.

    units      compute units, which run work-groups side by side
    items      work-items of a work-group that does one thing together; 1 where a work-item has a
               processor's vectors to itself, as on a CPU
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
    """The shape of a device of pyopencl's."""
    alone = bool(device.type & cl.device_type.CPU)
    return Shape(
        units=device.max_compute_units,
        items=1 if alone else min(256, device.max_work_group_size),
        most_items=device.max_work_group_size,
        lanes=max(1, device.native_vector_width_float),
        local=device.local_mem_size,
        parameters=device.max_parameter_size,
        doubles="cl_khr_fp64" in device.extensions.split(),
    )
