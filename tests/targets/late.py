"""A target as late as can be, for tests: it begins when the host waits, and not before.

So what the host waits for does not depend on who is faster, and can be counted.
"""

from collections.abc import Callable

from asynchronous import AsynchronousQueue, AsynchronousTarget, Event
from remote import Memory


class LateQueue(AsynchronousQueue):
    """Keeps its command buffers until somebody waits for one."""

    def __init__(self, memory: Memory) -> None:
        super().__init__(memory)
        self._kept: list[tuple[list[Callable[[], None]], Event]] = []

    def _start(self, commands: list[Callable[[], None]], event: Event) -> None:
        self._kept.append((commands, event))

    def wait(self, event: Event) -> None:  # type: ignore[override]
        """Starts what was committed up to the event."""
        while not event.done() and any(kept is event for _, kept in self._kept):
            super()._start(*self._kept.pop(0))
        super().wait(event)


class LateTarget(AsynchronousTarget):
    """As many devices as TENON_DEVICES says, each with a queue that waits to be waited for."""

    name = "late"

    def _make_queue(self, memory: Memory) -> LateQueue:
        return LateQueue(memory)
