"""A target with a clock of its own, for tests: each command takes as long as any other on it,
however long it does take.
"""

from collections.abc import Callable

from asynchronous import AsynchronousQueue, AsynchronousTarget, Event
from remote import Memory

COMMAND = 1 / 256  # seconds


class ClockedEvent(Event):
    """Of a commit that the device began with at some time."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = self.ended = 0.0

    def started(self) -> float:
        """When it did."""
        return self.begun

    def seconds(self) -> float:
        """When it had passed."""
        return self.ended


class ClockedQueue(AsynchronousQueue):
    """Counts its commands."""

    longest_pause = 0.0

    def __init__(self, memory: Memory) -> None:
        super().__init__(memory)
        self._clock = 1000.0

    def commit(self) -> Event:
        """Hands the open command buffer to the thread."""
        event = ClockedEvent()
        commands, self._open = self._open, []
        self._start(self._clocked(commands, event), event)
        return event

    def _clocked(
        self, commands: list[Callable[[], None]], event: ClockedEvent
    ) -> list[Callable[[], None]]:
        def begin() -> None:
            event.begun = self._clock

        def end() -> None:
            self._clock += COMMAND * len(commands)
            event.ended = self._clock

        return [begin, *commands, end]


class ClockedTarget(AsynchronousTarget):
    """As many devices as TENON_DEVICES says."""

    name = "clocked"

    def _make_queue(self, memory: Memory) -> ClockedQueue:
        return ClockedQueue(memory)
