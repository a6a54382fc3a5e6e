"""The opencl target: memory, queues and kernels of the devices of an OpenCL platform.

They are in a library (`native/`), which calls the driver's. pyopencl compiles kernels to binaries,
in a context of its own, and says what they are compiled for.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch_tenon.targets.library import LibraryTarget
from torch_tenon.targets.opencl.backend import OpenCLBackend
from torch_tenon.targets.opencl.device import shape_of
from torch_tenon.targets.target import TargetError

LIBRARY = Path(__file__).with_name("libtenon_opencl.so")


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
    CPU's: those that the library takes. Raises TargetError without pyopencl or a platform."""
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


class OpenCLTarget(LibraryTarget):
    """The devices of one kind that an OpenCL platform has.

    TENON_DEVICES may ask for more of them: then one device stands behind several, each with a queue
    of its own. Raises as `devices` does.
    """

    def __init__(self) -> None:
        # What is compiled for one of them runs on each.
        self.compiled_for = devices()[0]
        super().__init__(LIBRARY)
        cl = _pyopencl()
        shape = shape_of(cl, self.compiled_for)
        if shape.doubles:  # some functions of float32 are computed in float64
            context = cl.Context([self.compiled_for])
            self.backend = OpenCLBackend(cl, context, shape, self.native)
