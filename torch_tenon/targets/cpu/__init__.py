"""The cpu target: the host's processor and memory. Its own C++ kernels are in `csrc/`."""

from torch_tenon.targets.cpu.target import CpuTarget

__all__ = ["CpuTarget"]
