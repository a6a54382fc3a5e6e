"""The cpu target: the host's processor and memory, kernels in C, compiled by the system's compiler.

A command buffer runs on the thread that commits it. Without a C compiler everything works but
hand-written kernels; `tenon doctor` says which package brings one.
"""

import ctypes
import mmap
import os
import threading
import time
from collections.abc import Sequence

from torch_tenon import config
from torch_tenon.targets.cpu.backend import cpu_backend
from torch_tenon.targets.target import Event, Kernel, Target

_LIBC = ctypes.CDLL(None)
_HUGE_PAGE = ctypes.c_size_t(2 << 20)


class CpuEvent:
    """Passed by the time that `commit` returns."""

    def done(self) -> bool:
        """True."""
        return True

    def seconds(self) -> float:
        """Now, which is later than that."""
        return time.monotonic()


class CpuQueue:
    """Runs a command buffer on the thread that commits it. Each thread fills its own."""

    def __init__(self) -> None:
        self._open = threading.local()

    def encode(self, kernel: Kernel, args: Sequence[int | float | bool]) -> None:
        """Adds a call to the open command buffer of this thread."""
        if not hasattr(self._open, "calls"):
            self._open.calls = []
        self._open.calls.append((kernel, tuple(args)))

    def commit(self) -> CpuEvent:
        """Runs the open command buffer of this thread."""
        calls, self._open.calls = getattr(self._open, "calls", []), []
        for kernel, args in calls:
            kernel(args)
        return CpuEvent()

    def wait(self, event: Event) -> None:
        """Nothing to wait for."""


class CpuTarget(Target):
    """The host as a device, or as several of them (TENON_DEVICES)."""

    name = "cpu"
    host_memory = True

    def __init__(self) -> None:
        self.backend = cpu_backend()
        self._devices = config.DEVICES.read()
        self._queues = [CpuQueue() for _ in range(self._devices)]

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

    def queue(self, device: int) -> CpuQueue:
        """The device's queue."""
        return self._queues[device]
