"""The opencl target: devices of an OpenCL platform. Its library, in C++, is in `native/`."""

from torch_tenon.targets.opencl.target import OpenCLTarget

__all__ = ["OpenCLTarget"]
