"""Waiting for other threads, without a guess of how long they take."""

import ctypes
import functools
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch

import torch_tenon

TIMEOUT = 120


def until(condition: Callable[[], object]) -> None:
    """Waits for what another thread does."""
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def until_asleep(thread: threading.Thread) -> None:
    """Waits until a thread has come to a lock. It may sleep elsewhere: what a test asserts holds
    then as well, and it only does not try what it is for."""
    asleep = 0
    while asleep < 50:
        time.sleep(0.001)
        asleep = asleep + 1 if _stat(thread.native_id)[:1] in ([b"S"], []) else 0


def has_ended(pid: int) -> bool:
    """Whether a process is no more, or waits for somebody to ask how it ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return True
    return text.rpartition(b")")[2].split()[0] in (b"Z", b"X")


def start_of(native_id: int | None) -> bytes:
    """When the system's thread was started, which tells it from a later one of that number; nothing
    where there is none."""
    return b"".join(_stat(native_id)[19:20])


def _stat(native_id: int | None) -> list[bytes]:
    try:
        text = Path(f"/proc/self/task/{native_id}/stat").read_bytes()
    except OSError:
        return []
    return text.rpartition(b")")[2].split()


class Gate:
    """Where a kernel of the host waits: `wait(x)` is a copy of `x` that waits there."""

    def __init__(self) -> None:
        self._flags = (ctypes.c_int32 * 2)(0, 1)

    def wait(self, x: torch.Tensor) -> torch.Tensor:
        """Recorded or captured as any op."""
        return wait_for()(x, ctypes.addressof(self._flags))

    def close(self) -> None:
        """Whoever comes from now on waits."""
        self._flags[:] = [0, 0]

    def open(self) -> None:
        """Nobody waits any more."""
        self._flags[1] = 1

    def until_reached(self) -> None:
        """Somebody has come since it was closed."""
        until(lambda: self._flags[0])


@functools.cache
def wait_for() -> Callable[[torch.Tensor, int], torch.Tensor]:
    """A copy that sets the first of two flags and waits for the second, given their address."""
    arguments = ["float32 result", "float32 x", "int64 flags", "int64 numel(x)"]
    return torch_tenon.custom_op(
        "tenon_test::wait_for(Tensor x, int flags) -> Tensor",
        kernels=[torch_tenon.KernelSource("host", _WAIT_FOR, "wait_for", arguments)],
    )(lambda x, flags: x.new_empty(x.shape))


_WAIT_FOR = """
#include <stdint.h>
#include <time.h>
void wait_for(float *out, const float *x, int64_t flags, int64_t n) {
    volatile int32_t *started = (volatile int32_t *)flags, *may_end = started + 1;
    const struct timespec pause = {0, 1000000};
    *started = 1;
    for (int turn = 0; turn < 20000 && !*may_end; ++turn) nanosleep(&pause, 0);
    for (int64_t i = 0; i < n; ++i) out[i] = x[i];
}
"""
