"""The target interface: what someone with new hardware writes, in one file.

A target is memory, a compiler for kernels, a queue and, where the hardware brings them, library
kernels. `torch_tenon/targets/cpu/` is one to read; `TENON_TARGET` chooses one (see `config.py`).
"""

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import Any, ClassVar, Protocol


class CopyKind(IntEnum):
    """From where to where a copy goes."""

    HOST_TO_DEVICE = 0
    DEVICE_TO_HOST = 1
    DEVICE_TO_DEVICE = 2


class TargetError(RuntimeError):
    """A target cannot do what it was asked; the text says what is missing and the way out."""


class CompileError(TargetError):
    """A kernel's source does not compile; the text holds the compiler's words and the file."""


class Kernel(Protocol):
    """A compiled kernel. Only the queue of the target that made it knows what is inside."""

    entry: str


class Event(Protocol):
    """A point in a queue: everything committed before it."""

    def done(self) -> bool:
        """Has the device passed this point?"""


class Queue(Protocol):
    """One device's queue of command buffers. It is in order.

    `encode` adds to the open command buffer, `commit` hands that to the device without waiting,
    `wait` is for when the host needs a result.
    """

    def encode(self, kernel: Kernel, args: Sequence[int | float | bool]) -> None:
        """Adds a call of `kernel`. Pointers are integers; numbers are passed by value."""

    def commit(self) -> Event:
        """Starts the open command buffer. Errors of its kernels are raised here or by `wait`."""

    def wait(self, event: Event) -> None:
        """Blocks until the device has passed `event`."""


class Target:
    """The hardware behind the device. Subclass it and implement what raises NotImplementedError.

    Every method may be called from any thread. `device` counts from 0.
    """

    #: What `tenon doctor` and error messages call it.
    name: str
    #: Can the host read and write a device pointer? Then ops without another route run in place.
    host_memory: bool = True
    #: Does the queue go on after `commit` returned? Then `idle` and `synchronize` are asked before
    #: the host touches memory.
    asynchronous: bool = False
    #: The language that `compile` takes: "c", "opencl" or "triton".
    dialect: str = "c"
    #: Ops that the hardware's own library runs: the name with overload ("aten::mm") and a function
    #: that takes the op's arguments, with tensors of the device, and returns its results.
    library: ClassVar[Mapping[str, Callable[..., Any]]] = {}

    def devices(self) -> int:
        """How many devices there are, at least 1."""
        raise NotImplementedError

    def total_memory(self, device: int) -> int:
        """The bytes that a device has in all."""
        raise NotImplementedError

    def allocate(self, nbytes: int, device: int) -> int:
        """The address of `nbytes` new bytes, aligned to 512, or 0 when there are no more.

        Pointer arithmetic on it must hold: a view is its storage's address plus an offset.
        """
        raise NotImplementedError

    def free(self, pointer: int, device: int) -> None:
        """Takes back what `allocate` gave."""
        raise NotImplementedError

    def copy(self, dst: int, src: int, nbytes: int, kind: int, device: int) -> None:
        """Copies bytes, after what is in the queue; returns when the host may touch both sides.

        `kind` is a `CopyKind`. Never called on a target with `host_memory`.
        """
        raise NotImplementedError

    def compile(self, source: str, entry: str) -> Kernel:
        """The kernel named `entry` of a source in `dialect`. Raises CompileError."""
        raise NotImplementedError

    def queue(self, device: int) -> Queue:
        """The device's queue, always the same one."""
        raise NotImplementedError

    def synchronize(self, device: int) -> None:
        """Waits for everything that was encoded."""
        queue = self.queue(device)
        queue.wait(queue.commit())

    def idle(self, device: int) -> bool:
        """Has the device nothing left to do? Asked of asynchronous targets only."""
        return False
