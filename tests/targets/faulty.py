"""A target that fails when it is told to, for tests: the work of a commit is lost, and the device
goes on with the next one.
"""

import time
from collections.abc import Callable

from asynchronous import AsynchronousQueue, AsynchronousTarget, Event
from remote import Memory

from torch_tenon.targets.target import Launch


class PowerLost(RuntimeError):
    """What the device fails with."""


class FaultyEvent(Event):
    """Of a commit that may have failed; `says_so` is the method that tells."""

    failed = False
    says_so = ""

    def tell(self, method: str) -> None:
        """Raises where this method is the one, once it is over."""
        if self.failed and self._passed.is_set() and self.says_so in (method, "both"):
            raise PowerLost("the device lost its power")

    def done(self) -> bool:
        """Is the device past it?"""
        self.tell("done")
        return super().done()

    def wait(self) -> None:
        """Returns, or raises, once it is."""
        super().wait()
        self.tell("wait")


class FaultyQueue(AsynchronousQueue):
    """Loses the next commit with work in it when `loses` is set: to the method that tells."""

    loses = ""
    #: Launches until one raises; 0: none does.
    left = 0
    #: Seconds that each commit takes beside its work.
    pause = 0.0

    def __init__(self, memory: Memory) -> None:
        super().__init__(memory)

    def launch(self, launch: Launch) -> None:
        """Raises where it is its turn."""
        self.left -= 1
        if self.left == 0:
            raise PowerLost("the device takes no more kernels")
        super().launch(launch)

    def commit(self) -> Event:
        """Hands the open command buffer to the thread, or loses it."""
        event = FaultyEvent()
        commands: list[Callable[[], None]] = self._open
        self._open = []
        if self.loses and commands:
            event.failed, event.says_so, self.loses, commands = True, self.loses, "", []
        pause = self.pause
        self._start([*commands, lambda: time.sleep(pause)], event)
        return event


class FaultyTarget(AsynchronousTarget):
    """As many devices as TENON_DEVICES says."""

    name = "faulty"

    def _make_queue(self, memory: Memory) -> FaultyQueue:
        return FaultyQueue(memory)
