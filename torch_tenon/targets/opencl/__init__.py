"""The opencl target: devices of an OpenCL platform. Its queue in C++ is in `csrc/`."""

from torch_tenon.targets.opencl.target import OpenCLTarget

__all__ = ["OpenCLTarget"]
