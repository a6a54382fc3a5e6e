"""A target whose memory the host cannot reach, for tests.

What it allocates are handles, numbers that mean nothing to anybody else. The bytes lie elsewhere,
and only its queue gets there.
"""

import ctypes
import itertools
import threading
from collections.abc import Callable, Sequence

from torch_tenon import config
from torch_tenon.targets.target import Launch, Passed, Place, Target, TargetError

_ALIGNMENT = 512


class Memory:
    """The bytes behind the handles of one device."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._lock = threading.Lock()
        self._next = itertools.count(1)
        self._buffers: dict[int, tuple[ctypes.Array[ctypes.c_char], int]] = {}

    def allocate(self, nbytes: int) -> int:
        """A handle of new bytes, which hold anything but zeros."""
        buffer = ctypes.create_string_buffer(nbytes + _ALIGNMENT)
        ctypes.memset(buffer, 0xA5, nbytes + _ALIGNMENT)
        with self._lock:
            handle = next(self._next)
            self._buffers[handle] = (buffer, nbytes)
        return handle

    def free(self, handle: int) -> None:
        """Ends an allocation; raises TargetError for what is none."""
        with self._lock:
            if self._buffers.pop(handle, None) is None:
                raise TargetError(f"free: {handle} is no allocation of {self.name}")

    def address(self, place: Place, nbytes: int = 0) -> int:
        """Where the bytes are; raises TargetError for a place out of bounds."""
        handle, offset = place
        with self._lock:
            found = self._buffers.get(handle)
        if found is None or not 0 <= offset <= offset + nbytes <= found[1]:
            raise TargetError(f"{nbytes} bytes at {place} are not in the memory of {self.name}")
        start = ctypes.addressof(found[0])
        return start + -start % _ALIGNMENT + offset


class RemoteQueue:
    """Copies bytes at once; it runs nothing."""

    runs_calls = False

    def __init__(self, memory: Memory) -> None:
        self.memory = memory

    def copy(self, dst: Place | int, src: Place | int, nbytes: int) -> None:
        """Copies where the bytes really are."""
        ends = (
            end if isinstance(end, int) else self.memory.address(end, nbytes) for end in (dst, src)
        )
        ctypes.memmove(*ends, nbytes)

    def launch(self, launch: Launch) -> None:
        """Raises TargetError: it has no processor."""
        raise TargetError(f"{self.memory.name} runs no kernels")

    def call(self, work: Callable[[list[int]], None], places: Sequence[Place | None]) -> None:
        """Raises TargetError: it has no processor."""
        raise TargetError(f"{self.memory.name} runs no calls")

    def commit(self) -> Passed:
        """Everything is over already."""
        return Passed()

    def wait(self, event: Passed) -> None:
        """Nothing to wait for."""


class RemoteTarget(Target):
    """As many devices as TENON_DEVICES says, each with memory of its own."""

    name = "remote"
    host_memory = False

    def __init__(self) -> None:
        self._memories = [Memory(f"{self.name}:{k}") for k in range(config.DEVICES.read())]
        self._queues = [self._make_queue(memory) for memory in self._memories]

    def _make_queue(self, memory: Memory) -> RemoteQueue:
        return RemoteQueue(memory)

    def devices(self) -> int:
        """As many as TENON_DEVICES says."""
        return len(self._memories)

    def total_memory(self, device: int) -> int:
        """4 GiB, which is more than the tests use."""
        return 4 << 30

    def allocate(self, nbytes: int, device: int) -> int:
        """A handle."""
        return self._memories[device].allocate(nbytes)

    def free(self, handle: int, device: int) -> None:
        """Ends the allocation."""
        self._memories[device].free(handle)

    def queue(self, device: int) -> RemoteQueue:
        """The device's queue."""
        return self._queues[device]
