"""A target that computes while the host goes on, for tests.

Each device has memory that the host cannot reach and a thread that works off its queue, with pauses
of random length, so that whatever the host forgets to wait for is late now and then. It runs the
kernels that are generated for the host, and PyTorch's CPU kernels, on its own memory.
"""

import ctypes
import queue
import random
import threading
import time
from collections.abc import Callable, Sequence

from remote import Memory, RemoteQueue, RemoteTarget

from torch_tenon.targets.cpu.backend import cpu_backend
from torch_tenon.targets.target import Launch, Place, TargetError

_LONGEST_PAUSE = 0.002  # seconds before a command buffer, and now and then before a command
_KERNEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)


class Event:
    """Passed when the device's thread says so."""

    def __init__(self) -> None:
        self._passed = threading.Event()
        self._seconds = 0.0

    def set(self) -> None:
        """The device is here now."""
        self._seconds = time.monotonic()
        self._passed.set()

    def done(self) -> bool:
        """Was it?"""
        return self._passed.is_set()

    def seconds(self) -> float:
        """When it was."""
        return self._seconds

    def wait(self) -> None:
        """Returns once it was."""
        self._passed.wait()


class AsynchronousQueue(RemoteQueue):
    """Command buffers for a thread."""

    runs_calls = True
    longest_pause = _LONGEST_PAUSE

    def __init__(self, memory: Memory) -> None:
        super().__init__(memory)
        self._open: list[Callable[[], None]] = []
        self._committed: queue.SimpleQueue[tuple[list[Callable[[], None]], Event]] = (
            queue.SimpleQueue()
        )
        self._random = random.Random(memory.name)
        self._thread: threading.Thread | None = None

    def copy(self, dst: Place | int, src: Place | int, nbytes: int) -> None:
        """Adds a copy."""
        super_copy = super().copy
        self._open.append(lambda: super_copy(dst, src, nbytes))

    def launch(self, launch: Launch) -> None:
        """Adds a run of a kernel."""

        def run() -> None:
            pointers = (ctypes.c_void_p * len(launch.places))(*self._addresses(launch.places))
            sizes = (ctypes.c_int64 * len(launch.numbers))(*launch.numbers)
            _KERNEL(launch.kernel)(pointers, sizes, launch.status)

        self._open.append(run)

    def call(self, work: Callable[[list[int]], None], places: Sequence[Place | None]) -> None:
        """Adds a run of the host's code."""
        self._open.append(lambda: work(self._addresses(places)))

    def commit(self) -> Event:
        """Hands the open command buffer to the thread."""
        event = Event()
        commands, self._open = self._open, []
        self._start(commands, event)
        return event

    def _start(self, commands: list[Callable[[], None]], event: Event) -> None:
        self._committed.put((commands, event))
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, daemon=True, name=self.memory.name)
            self._thread.start()

    def wait(self, event: Event) -> None:  # type: ignore[override]
        """Returns when the thread has come to the event."""
        event.wait()

    def _addresses(self, places: Sequence[Place | None]) -> list[int]:
        return [0 if place is None else self.memory.address(place) for place in places]

    def _work(self) -> None:
        while True:
            commands, event = self._committed.get()
            time.sleep(self._random.uniform(0, self.longest_pause))
            for command in commands:
                if self._random.random() < 0.05:
                    time.sleep(self._random.uniform(0, self.longest_pause))
                command()
            event.set()


class AsynchronousTarget(RemoteTarget):
    """As many devices as TENON_DEVICES says, each with memory and a thread of its own."""

    name = "asynchronous"

    def __init__(self) -> None:
        super().__init__()
        self.backend = cpu_backend()

    def _make_queue(self, memory: Memory) -> AsynchronousQueue:
        return AsynchronousQueue(memory)


__all__ = ["AsynchronousTarget", "TargetError"]
