"""The target interface: what someone with new hardware writes, in one file.

A target is memory, a queue, a backend that makes kernels and, where the hardware brings them,
library kernels. `torch_tenon/targets/cpu/` is one to read; `TENON_TARGET` chooses one (see
`config.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from torch_tenon.compiler.backend import Backend

if TYPE_CHECKING:
    from torch_tenon import _C

#: Where bytes are to a target: what its `allocate` gave, and an offset in bytes.
Place = tuple[int, int]


class Launch(NamedTuple):
    """A run of a kernel, as a queue gets it.

    kernel        what `torch_tenon.launch` was given, or the backend's `compile` gave
    places        where memory begins, in the kernel's order; None where it gets a null pointer
    numbers       arguments by value, 64 bits each: one of float64 or float32 is its bits
    status        an address of the host's for what the kernel's checks find, 0 where it has none.
                  Its words are 0 now, and are read when the event of the next commit is done
    status_words  how many there are
    nbytes        of each place: how much the kernel may read and write there
    grid          runs along each axis, of a kernel that has a grid; whole groups are started
    group         how many of these are a group along each axis; none where nobody says so
    scratch       bytes of fast memory that a group shares
    next          what comes after it, where a plan knows that (`Next` of compiler/handwritten.py):
                  0 unknown, 1 another launch, 2 the host. Before another launch there is no reason
                  to hand over the open command buffer yet
    """

    kernel: int
    places: Sequence[Place | None]
    numbers: Sequence[int] = ()
    status: int = 0
    status_words: int = 0
    nbytes: Sequence[int] = ()
    grid: Sequence[int] = ()
    group: Sequence[int] = ()
    scratch: int = 0
    next: int = 0


class TargetError(RuntimeError):
    """A target cannot do what it was asked; the text says what is missing and the way out."""


class CompilerMissing(TargetError):
    """There is nothing to compile kernels with; the text says what to install."""


class CompileError(TargetError):
    """A kernel was not compiled; the text holds the compiler's words and the file.

    `is_of_source` says that the compiler refuses the source, and would each time. Where it was
    killed, say, or had no disk space, the kernel is compiled again later.
    """

    def __init__(self, text: str, is_of_source: bool = False) -> None:
        super().__init__(text)
        self.is_of_source = is_of_source


class BackendFailed(RuntimeError):
    """A backend raised what it should not, or gave no answer of the kind that it was asked for; the
    text names the method, the ops and the line."""


class Event(Protocol):
    """A point in a queue: everything committed before it."""

    def done(self) -> bool:
        """Has the device passed this point, well or not?"""

    def seconds(self) -> float:
        """When it passed, on a clock that all devices of the target share. Asked once it has, for
        events that somebody times."""


class TimedEvent(Event, Protocol):
    """An event of a device with a clock: optional, of whichever queue."""

    def started(self) -> float:
        """When the device began with the command buffer of this point, on the clock of `seconds`.
        A profiler commits each kernel by itself, and has its time by these two."""


class Passed:
    """The event of a queue that has done everything when its `commit` returns."""

    def __init__(self) -> None:
        self._seconds = time.monotonic()

    def done(self) -> bool:
        """True."""
        return True

    def seconds(self) -> float:
        """When it was made, on the host's clock."""
        return self._seconds


class Queue(Protocol):
    """One device's queue of command buffers, on a target whose memory the host cannot reach.

    It is in order. `copy`, `launch` and `call` add to the open command buffer and do not wait;
    `commit` hands that to the device without waiting; `wait` is for when the host needs a result.
    The core calls from any thread, one at a time. Python's signal handlers wait meanwhile, but not
    where all that happens is that the host waits. Memory of the host that is named in a command
    stays until the event of the next `commit` is done.
    """

    #: Does the device run the host's code on its own memory? `call` is for such a one alone.
    runs_calls: bool

    def copy(self, dst: Place | int, src: Place | int, nbytes: int) -> None:
        """Copies bytes. A `Place` is memory of this device, an integer an address of the host."""

    def launch(self, launch: Launch) -> None:
        """Runs a kernel over memory."""

    def call(self, work: Callable[[list[int]], None], places: Sequence[Place | None]) -> None:
        """Runs `work` with the addresses by which it reaches the places (0 for None)."""

    def commit(self) -> Event:
        """Starts the open command buffer, empty or not."""

    def wait(self, event: Event) -> None:
        """Blocks until the device has passed `event`, without the interpreter's lock.

        Raises what the device failed with in the command buffer of the event, and raises it each
        time: whoever reads what that should have made gets the error. An error that comes once is
        taken for one of a signal's handler, and is the waiting thread's alone. The core calls
        `wait` for every event, also for one that is done.
        """


class OrderedQueue(Queue, Protocol):
    """One of the queues of a device with copy queues (`Target.copy_queues`)."""

    def after(self, event: Event) -> None:
        """What is enqueued from here on begins, on the device, once it has passed that event of
        another of its queues, well or not. Nobody waits on the host."""


class PeerQueue(Queue, Protocol):
    """A queue of a device that copies from other devices of its target: optional."""

    def copy_from(self, dst: Place, src: Place, device: int, nbytes: int) -> None:
        """Adds a copy of bytes to a place of this device, from one of `device`.

        Nothing that is enqueued on either device touches these bytes, and nothing will before the
        event of the next `commit` is done. Without this method such copies go through the host.
        """


class Target:
    """The hardware behind the device. Subclass it and implement what raises NotImplementedError.

    Every method may be called from any thread. `device` counts from 0.
    """

    #: What `tenon doctor` and error messages call it.
    name: str
    #: Is what `allocate` gives an address that the host can read and write? Then ops without
    #: another route run in place, and everything runs on the thread that enqueues it.
    host_memory: bool = True
    #: Its part of the compiler, as it is when the device is registered. Without one nothing is
    #: planned: windows and graphs run op by op, by `library` and the host's kernels.
    backend: Backend | None = None
    #: A library behind `include/tenon.h` that has the memory and the queue; then `allocate`, `free`
    #: and `queue` are not asked. `LibraryTarget` (library.py) is a target of nothing else.
    native: _C.TargetLibrary | None = None
    #: Ops that the hardware's own library runs: the name with overload ("aten::mm") and a function
    #: that takes the op's arguments, with tensors of the device, and returns its results, which
    #: `torch_tenon.launch` may compute; or NotImplemented, and the host's kernel runs. It does
    #: not write the arguments.
    library: ClassVar[Mapping[str, Callable[..., Any]]] = {}

    def devices(self) -> int:
        """How many devices there are, at least 1."""
        return 1

    def total_memory(self, device: int) -> int:
        """The bytes that a device has in all."""
        raise NotImplementedError

    def facts(self) -> Mapping[str, str]:
        """What `tenon doctor` says of the hardware, by heading: what drives it, what it lacks and
        how that is made up for."""
        return {}

    def allocate(self, nbytes: int, device: int) -> int:
        """A handle of `nbytes` new bytes, aligned to 512, or 0 when there are no more.

        With `host_memory` it is an address; on another target any number that is not 0.
        """
        raise NotImplementedError

    def free(self, handle: int, device: int) -> None:
        """Takes back what `allocate` gave."""
        raise NotImplementedError

    def queue(self, device: int) -> Queue:
        """The device's queue, always the same one. With `host_memory` nobody asks for it: what is
        enqueued runs on the thread that does so."""
        raise NotImplementedError

    def copy_queues(self, device: int) -> Sequence[OrderedQueue]:
        """Queues for copies beside that one, where the device has copy engines; asked once.

        Copies run beside kernels then. The first gets copies to the device, the last one those to
        the host, which may be the same. Of such a queue `copy`, `commit`, `wait` and `after` are
        used, and the device's queue is an `OrderedQueue` too. The core calls `after` wherever two
        queues touch the same memory, so a target does not look at what it is given.
        """
        return ()
