"""A target whose devices copy from one another, for tests: asynchronous, and it may lose a copy."""

import ctypes
from collections.abc import Sequence

from faulty import FaultyQueue, FaultyTarget, PowerLost
from remote import Memory

from torch_tenon.targets.target import Place


class CopyingQueue(FaultyQueue):
    """Counts copies from other devices, and between this one and the host."""

    between = through_host = 0
    refuses = False

    def __init__(self, memory: Memory, memories: Sequence[Memory]) -> None:
        super().__init__(memory)
        self._memories = memories

    def copy(self, dst: Place | int, src: Place | int, nbytes: int) -> None:
        """Adds a copy."""
        self.through_host += isinstance(dst, int) or isinstance(src, int)
        super().copy(dst, src, nbytes)

    def copy_from(self, dst: Place, src: Place, device: int, nbytes: int) -> None:
        """Adds a copy from another device. Raises where it is told to."""
        if self.refuses:
            raise PowerLost("the link between devices is down")
        self.between += 1

        def run() -> None:
            there = self._memories[device].address(src, nbytes)
            ctypes.memmove(self.memory.address(dst, nbytes), there, nbytes)

        self._open.append(run)


class BetweenTarget(FaultyTarget):
    """As many devices as TENON_DEVICES says."""

    name = "between"

    def _make_queue(self, memory: Memory) -> CopyingQueue:
        return CopyingQueue(memory, self._memories)
