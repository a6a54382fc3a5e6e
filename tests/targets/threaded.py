"""A target whose queue is worked off by the package's own thread, for tests: it fails when told to.

Its commands are those of `asynchronous.py`, without the pauses.
"""

from asynchronous import AsynchronousQueue, AsynchronousTarget
from remote import Memory

from torch_tenon.targets.thread import Commit, QueueThread


class ThreadedQueue(AsynchronousQueue):
    """Raises `fails`, once, in place of the last command of a command buffer."""

    fails: BaseException | None = None

    def __init__(self, memory: Memory) -> None:
        super().__init__(memory)
        self.thread = QueueThread(memory.name)

    def commit(self) -> Commit:  # type: ignore[override]
        """Hands over."""
        commands, self._open = self._open, []
        if self.fails is not None and commands:
            error, self.fails = self.fails, None

            def fail() -> None:
                raise error

            commands[-1] = fail
        return self.thread.start(commands)

    def wait(self, event: Commit) -> None:  # type: ignore[override]
        """Until the thread is there."""
        event.wait()


class ThreadedTarget(AsynchronousTarget):
    """As many devices as TENON_DEVICES says."""

    name = "threaded"

    def _make_queue(self, memory: Memory) -> ThreadedQueue:
        return ThreadedQueue(memory)
