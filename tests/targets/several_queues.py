"""A target with copy engines beside its kernels, for tests: each queue is a thread.

For a while the kernels are slow and the copies are fast, and then it is the other way round. So
what does not wait for what it touches finds something else there. Numbers of a queue's copies are
counted, and a test may hold a queue.
"""

import random
import threading
import time
from collections.abc import Callable, Sequence

from asynchronous import AsynchronousQueue, AsynchronousTarget, Event
from remote import Memory

from torch_tenon.targets.target import Place

_SLOW = 0.004  # seconds at most before a command buffer, by turns
_TURN = 0.05  # how long one of the two is slow


class OrderedQueue(AsynchronousQueue):
    """One that waits for others when it is told to."""

    longest_pause = 0.0
    copies = 0  # that it got

    def __init__(self, memory: Memory, number: int) -> None:
        super().__init__(memory)
        self.number = number
        self.runs = threading.Event()  # cleared: it begins with no command buffer
        self.runs.set()
        self._pauses = random.Random(number)

    def copy(self, dst: Place | int, src: Place | int, nbytes: int) -> None:
        """Adds a copy."""
        self.copies += 1
        super().copy(dst, src, nbytes)

    def after(self, event: Event) -> None:
        """What follows begins once the device has passed the event."""
        self._open.append(event.wait)

    def _start(self, commands: list[Callable[[], None]], event: Event) -> None:
        super()._start([self._begin, *commands], event)

    def _begin(self) -> None:
        self.runs.wait()
        if int(time.monotonic() / _TURN + self.number) % 2:
            time.sleep(self._pauses.uniform(0, _SLOW))


class SeveralQueuesTarget(AsynchronousTarget):
    """As many devices as TENON_DEVICES says, with one queue for copies."""

    name = "several queues"
    copy_engines = 1

    def __init__(self) -> None:
        super().__init__()
        self._copy_queues = [
            [OrderedQueue(memory, k) for k in range(1, self.copy_engines + 1)]
            for memory in self._memories
        ]

    def _make_queue(self, memory: Memory) -> OrderedQueue:
        return OrderedQueue(memory, 0)

    def copy_queues(self, device: int) -> Sequence[OrderedQueue]:
        """The device's."""
        return self._copy_queues[device]


class BothWaysTarget(SeveralQueuesTarget):
    """With one for copies to the device, and one for those to the host."""

    copy_engines = 2
