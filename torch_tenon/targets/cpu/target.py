"""The cpu target: the host's processor and memory, kernels in C, compiled by the system's compiler.

What is enqueued runs on the thread that does so. Without a C compiler everything works but
kernels written by hand; `tenon doctor` says which package brings one.
"""

import ctypes
import mmap
import os

from torch_tenon import config
from torch_tenon.targets.cpu.backend import cpu_backend
from torch_tenon.targets.target import Target

_LIBC = ctypes.CDLL(None)
_HUGE_PAGE = ctypes.c_size_t(2 << 20)


class CpuTarget(Target):
    """The host as a device, or as several of them (TENON_DEVICES)."""

    name = "cpu"
    host_memory = True

    def __init__(self) -> None:
        self.backend = cpu_backend()
        self._devices = config.DEVICES.read()

    def devices(self) -> int:
        """As many as TENON_DEVICES says."""
        return self._devices

    def total_memory(self, device: int) -> int:
        """The host's memory in bytes."""
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    def allocate(self, nbytes: int, device: int) -> int:
        """Memory of the host in huge pages, where the system has some.

        They take fewer faults and translations, and lie evenly in the caches.
        """
        found = ctypes.c_void_p()
        size = ctypes.c_size_t(nbytes)
        if _LIBC.posix_memalign(ctypes.byref(found), _HUGE_PAGE, size):
            return 0
        if hasattr(mmap, "MADV_HUGEPAGE"):  # advice: what cannot be had is not missed
            _LIBC.madvise(found, size, mmap.MADV_HUGEPAGE)
        return found.value or 0

    def free(self, pointer: int, device: int) -> None:
        """Gives it back to the system."""
        _LIBC.free(ctypes.c_void_p(pointer))
