"""The opencl target: memory, queues and kernels of the devices of an OpenCL platform.

pyopencl sets up and builds programs. What runs often, copies and launches, goes from the core's
queue (`csrc/queue.cpp`) straight to the driver's library.
"""

from __future__ import annotations

import atexit
import os
import threading
from pathlib import Path
from typing import Any

from torch_tenon import config
from torch_tenon.targets.opencl.backend import OpenCLBackend
from torch_tenon.targets.opencl.device import shape_of
from torch_tenon.targets.target import Target, TargetError

# For what the checks of a kernel find: four words of 64 bits each, of more than any kernel has.
STATUS_BYTES = 1 << 16

# By extension: what a device without it lacks, and what becomes of that.
OPTIONAL = {
    "cl_khr_fp16": "half (float16 is computed in float32)",
    "cl_khr_fp64": "double (no kernels are generated: ops run one by one, on the host)",
    "cl_khr_int64_base_atomics": "64-bit atomics (stores of a scatter are shared out without any)",
}


def _pyopencl() -> Any:
    try:
        import pyopencl
    except ImportError as error:
        raise TargetError(
            f"the target 'opencl' needs pyopencl ({error}): pip install 'torch-tenon[opencl]'"
        ) from error
    return pyopencl


def devices() -> list[Any]:
    """The devices of one kind of the first platform that has any which compile, a GPU's before a
    CPU's. Raises TargetError without pyopencl or a platform."""
    cl = _pyopencl()
    try:
        platforms = cl.get_platforms()
    except cl.Error:  # the loader's way to say that there are none
        platforms = []
    found = [d for p in platforms for d in p.get_devices() if d.available and d.compiler_available]
    if not found:
        raise TargetError(
            "there is no OpenCL platform with a device: install the vendor's driver, or PoCL for "
            "the processor (Debian: apt-get install pocl-opencl-icd)"
        )
    first = min(found, key=lambda d: not d.type & cl.device_type.GPU)
    return [d for d in found if (d.platform, d.name) == (first.platform, first.name)]


def _library() -> str:
    """The file of the driver's library that pyopencl has loaded."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "libOpenCL" in line:
            return line.split(maxsplit=5)[5]
    return "libOpenCL.so.1"


class OpenCLTarget(Target):
    """The devices of one kind that an OpenCL platform has.

    TENON_DEVICES may ask for more of them: then one device stands behind several, each with a queue
    of its own. Raises as `devices` does.
    """

    name = "opencl"
    host_memory = False

    def __init__(self) -> None:
        from torch_tenon import _C

        self._cl = cl = _pyopencl()
        found = devices()
        self.context = cl.Context(found)
        count = max(len(found), config.DEVICES.read())
        self._devices = [found[k % len(found)] for k in range(count)]
        profiled = cl.command_queue_properties.PROFILING_ENABLE
        self._queues = [cl.CommandQueue(self.context, d, profiled) for d in self._devices]
        _C.open_opencl(_library(), self.context.int_ptr, [d.int_ptr for d in found], count)
        shape = shape_of(cl, found[0])
        if shape.doubles:  # some functions of float32 are computed in float64
            self.backend = OpenCLBackend(cl, self.context, shape)
        self._lock = threading.Lock()
        self._buffers: dict[int, Any] = {}
        # A driver that still computes while its library is unloaded crashes. A forked child has
        # nothing that computes, and would wait for good.
        atexit.register(self._finish)
        os.register_at_fork(after_in_child=lambda: atexit.unregister(self._finish))

    def _finish(self) -> None:
        for queue in self._queues:
            queue.finish()

    def devices(self) -> int:
        """As many as the platform has of one kind, or as TENON_DEVICES says."""
        return len(self._devices)

    def total_memory(self, device: int) -> int:
        """What the driver says, in bytes."""
        return int(self._devices[device].global_mem_size)

    def facts(self) -> dict[str, str]:
        """The device, its driver, and what of OpenCL's options it does not have."""
        d = self._devices[0]
        missing = {
            name: text for name, text in OPTIONAL.items() if name not in d.extensions.split()
        }
        return {
            "OpenCL device": f"{d.name.strip()}, {d.max_compute_units} compute units, {d.version}",
            "OpenCL driver": f"{d.platform.version.strip()}, {d.driver_version}",
            "The device lacks": "; ".join(missing.values()) or "nothing that is made use of",
        }

    def allocate(self, nbytes: int, device: int) -> int:
        """The driver's handle of a new buffer; 0 where it has no room for one."""
        try:
            buffer = self._cl.Buffer(self.context, self._cl.mem_flags.READ_WRITE, nbytes)
        except (MemoryError, self._cl.Error):
            return 0
        with self._lock:
            self._buffers[buffer.int_ptr] = buffer
        return int(buffer.int_ptr)

    def free(self, handle: int, device: int) -> None:
        """Lets go of the buffer, which the driver frees once no command uses it."""
        with self._lock:
            del self._buffers[handle]

    def queue(self, device: int) -> Any:
        """The device's queue, in C++: the core takes it over."""
        from torch_tenon import _C

        status = self._cl.Buffer(self.context, self._cl.mem_flags.READ_WRITE, STATUS_BYTES)
        self._buffers[status.int_ptr] = status
        return _C.opencl_queue(self._queues[device].int_ptr, device, status.int_ptr)
