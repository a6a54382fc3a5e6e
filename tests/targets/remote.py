"""A target whose memory the host cannot reach, for tests.

A device address is one of a reservation without access rights, so any host code that dereferences
it ends the process at once. The bytes lie elsewhere, and only `copy` gets there.
"""

import ctypes
import threading
from bisect import bisect_right
from dataclasses import dataclass

from torch_tenon import config
from torch_tenon.targets.target import CopyKind, Kernel, Queue, Target, TargetError

_PAGE = 4096
_PROT_NONE = 0
_MAP_PRIVATE_ANONYMOUS_NORESERVE = 0x02 | 0x20 | 0x4000
_MAP_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.malloc.restype = ctypes.c_void_p
_libc.malloc.argtypes = (ctypes.c_size_t,)
_libc.free.argtypes = (ctypes.c_void_p,)


@dataclass(frozen=True)
class _Allocation:
    address: int  # what the host is told
    nbytes: int
    backing: int  # where the bytes are
    device: int


class RemoteTarget(Target):
    """As many devices as TENON_DEVICES says, each with memory of its own."""

    name = "remote"
    host_memory = False

    def __init__(self) -> None:
        self._devices = config.DEVICES.read()
        self._lock = threading.Lock()
        self._starts: list[int] = []  # sorted, beside `_allocations`
        self._allocations: list[_Allocation] = []

    def devices(self) -> int:
        """As many as TENON_DEVICES says."""
        return self._devices

    def total_memory(self, device: int) -> int:
        """4 GiB, none of them real before it is written."""
        return 4 << 30

    def allocate(self, nbytes: int, device: int) -> int:
        """A reservation without access rights, and the bytes elsewhere."""
        size = (nbytes + _PAGE - 1) // _PAGE * _PAGE
        address = _libc.mmap(None, size, _PROT_NONE, _MAP_PRIVATE_ANONYMOUS_NORESERVE, -1, 0)
        if address == _MAP_FAILED:
            return 0
        backing = _libc.malloc(nbytes)
        if not backing:
            _libc.munmap(address, size)
            return 0
        with self._lock:
            at = bisect_right(self._starts, address)
            self._starts.insert(at, address)
            self._allocations.insert(at, _Allocation(address, nbytes, backing, device))
        return address

    def free(self, pointer: int, device: int) -> None:
        """Ends the reservation; raises TargetError for what was not allocated on the device."""
        with self._lock:
            at = bisect_right(self._starts, pointer) - 1
            found = self._allocations[at] if at >= 0 else None
            if found is None or found.address != pointer or found.device != device:
                raise TargetError(f"free: {pointer:#x} is no allocation of remote:{device}")
            del self._starts[at], self._allocations[at]
        _libc.munmap(pointer, (found.nbytes + _PAGE - 1) // _PAGE * _PAGE)
        _libc.free(found.backing)

    def copy(self, dst: int, src: int, nbytes: int, kind: int, device: int) -> None:
        """Copies where the bytes really are; raises TargetError for an address out of bounds."""
        if kind != CopyKind.HOST_TO_DEVICE:
            src = self._translate(src, nbytes, device)
        if kind != CopyKind.DEVICE_TO_HOST:
            dst = self._translate(dst, nbytes, device)
        ctypes.memmove(dst, src, nbytes)

    def compile(self, source: str, entry: str) -> Kernel:
        """Raises TargetError: it runs everything by reference execution."""
        raise TargetError(f"the target 'remote' has no compiler for the kernel {entry!r}")

    def queue(self, device: int) -> Queue:
        """Raises TargetError: nothing can be compiled for it."""
        raise TargetError("the target 'remote' has no queue")

    def synchronize(self, device: int) -> None:
        """Every copy is complete when it returns."""

    def _translate(self, address: int, nbytes: int, device: int) -> int:
        with self._lock:
            at = bisect_right(self._starts, address) - 1
            found = self._allocations[at] if at >= 0 else None
        if found is not None and found.device == device:
            offset = address - found.address
            if offset + nbytes <= found.nbytes:
                return found.backing + offset
        raise TargetError(
            f"{nbytes} bytes at {address:#x} are not in the memory of remote:{device}"
        )
