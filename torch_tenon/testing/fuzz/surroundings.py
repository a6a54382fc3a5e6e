"""What a statement of a random program uses beside tensors: streams, events, settings that are in
force around it, limits, a process that it forks. On the CPU, where there is nothing like it, it
does nothing.
"""

from __future__ import annotations

import _thread
import contextlib
import functools
import io
import operator
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

_CHILD = 30.0  # seconds until a forked process hangs


class _Nothing(contextlib.nullcontext[None]):
    """Stands for a stream or an event."""

    def _nothing(self, *_: object) -> None:
        return None

    record = wait = synchronize = query = wait_event = wait_stream = record_event = _nothing


@functools.cache
def stream(device: torch.device, number: int) -> Any:
    """The stream of a device with this number; the same within a program."""
    return _Nothing() if device.type == "cpu" else torch.Stream(device=device)


@functools.cache
def event(device: torch.device, number: int) -> Any:
    """The event of a device with this number; the same within a program."""
    return _Nothing() if device.type == "cpu" else torch.Event(device=device)


def in_stream(device: torch.device, number: int) -> contextlib.AbstractContextManager[Any]:
    """The stream as the device's own module makes it current."""
    found = stream(device, number)
    return found if isinstance(found, _Nothing) else torch.tenon.stream(found)  # type: ignore[attr-defined]


def synchronize(device: torch.device) -> None:
    """Waits for a device."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Another default dtype."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def deterministic() -> Iterator[None]:
    """Deterministic algorithms, where there are any."""
    before = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warns)


@contextlib.contextmanager
def num_threads(count: int) -> Iterator[None]:
    """Another number of threads within an op."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Through(TorchDispatchMode):
    """A mode that does nothing."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """The op as it is."""
        return func(*args, **(kwargs or {}))


class FunctionThrough(TorchFunctionMode):
    """A mode that does nothing, above autograd."""

    def __torch_function__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """The function as it is."""
        return func(*args, **(kwargs or {}))


# What takes the memory that an allocator holds for later.
_ballast: list[torch.Tensor] = []


def limit(device: torch.device, more: int) -> None:
    """No more memory than is allocated now, and about `more` bytes. What was called before has run.

    An allocator takes memory in large pieces: what is left of those is taken here.
    """
    if device.type == "cpu":
        return
    unlimit(device)
    try:
        torch.accelerator.synchronize(device)
    finally:
        tenon = torch.tenon  # type: ignore[attr-defined]
        tenon.empty_cache()
        tenon.set_memory_limit(tenon.memory_reserved(device), device)
        size = 1 << 22
        while size >= 64 and len(_ballast) < 1000:
            try:
                _ballast.append(torch.zeros(size, dtype=torch.uint8).to(device))
                torch.accelerator.synchronize(device)
            except torch.OutOfMemoryError:
                size //= 2
        enough = [k for k, block in enumerate(_ballast) if more and block.nbytes >= more]
        del _ballast[enough[-1] if enough else len(_ballast) :]


def unlimit(device: torch.device) -> None:
    """As much memory as there is."""
    if device.type != "cpu":
        _ballast.clear()
        torch.tenon.set_memory_limit(None, device)  # type: ignore[attr-defined]


def interrupted(call: Callable[[], object]) -> None:
    """The call while Ctrl-C was pressed: nothing of Python runs between the two, so that the first
    to look for signals is what `call` does."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        try:
            list(map(operator.call, (_thread.interrupt_main, call)))
        finally:
            time.sleep(0)  # the latest that it comes, also when the call raised
    finally:
        signal.signal(signal.SIGINT, before)


def forked(x: torch.Tensor) -> torch.Tensor:
    """The tensor as a forked process computes it. Where the process says to spawn, the tensor.

    Raises what it raises, TimeoutError when it hangs, and ChildProcessError when it crashes.
    """
    if x.device.type == "cpu":
        return x
    source, sink = os.pipe()
    child = os.fork()
    if child == 0:
        _answer(x, sink)
    os.close(sink)
    try:
        data = _all_of(source)
    finally:
        os.close(source)
        os.kill(child, signal.SIGKILL)  # it has answered, or never will
        os.waitpid(child, 0)
    if data is None:
        raise TimeoutError("the forked process hangs")
    if data[:1] == b"v":
        found: torch.Tensor = torch.load(io.BytesIO(data[1:]), weights_only=True)
        return found
    name, _, text = data[1:].decode().partition(": ")
    if name == "RuntimeError" and "spawn" in text:
        return x
    if name:
        raise type(name, (RuntimeError,), {})(text)
    raise ChildProcessError("the forked process crashed")


def _answer(x: torch.Tensor, sink: int) -> None:
    """What the forked process does: it writes the tensor, or the error, and ends."""
    try:
        try:
            held = io.BytesIO()
            computed = torch.where(torch.ones_like(x, dtype=torch.bool), x, x)
            torch.save(computed.detach().cpu(), held)
            answer = b"v" + held.getvalue()
        except Exception as error:
            answer = f"e{type(error).__name__}: {error}".encode()
        with os.fdopen(sink, "wb") as file:
            file.write(answer)
    finally:
        os._exit(0)


def _all_of(source: int) -> bytes | None:
    """What is written until the other end closes; None when that takes too long."""
    data, deadline = b"", time.monotonic() + _CHILD
    while (left := deadline - time.monotonic()) > 0:
        if select.select([source], [], [], left)[0]:
            part = os.read(source, 1 << 16)
            if not part:
                return data
            data += part
    return None


def together(*calls: Callable[[], None]) -> None:
    """Calls at the same time, each on a thread of its own, until the last is done."""
    start = threading.Barrier(len(calls))

    def run(call: Callable[[], None]) -> None:
        start.wait()
        call()

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # seconds
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)


# What can be in force around a statement, by name.
CONTEXTS = {
    "inference": "torch.inference_mode()",
    "grad": "torch.enable_grad()",
    "autocast": "torch.autocast(D0.type, torch.bfloat16)",
    "no_autocast": "torch.autocast(D0.type, enabled=False)",
    "float64": "default_dtype(torch.float64)",
    "bfloat16": "default_dtype(torch.bfloat16)",
    "deterministic": "deterministic()",
    "one_thread": "num_threads(1)",
    "two_threads": "num_threads(2)",
    "mode": "Through()",
    "function_mode": "FunctionThrough()",
    "stream": "stream(D0, 1)",
    "other_stream": "stream(D0, 2)",
    "in_stream": "in_stream(D0, 1)",
    "far_stream": "stream(D1, 1)",
}

NAMESPACE: dict[str, Any] = {
    f.__name__: f
    for f in (
        stream,
        event,
        in_stream,
        synchronize,
        default_dtype,
        deterministic,
        num_threads,
        Through,
        FunctionThrough,
        limit,
        unlimit,
        interrupted,
        forked,
    )
}


def forget() -> None:
    """Ends streams and events of the program before."""
    stream.cache_clear()
    event.cache_clear()
