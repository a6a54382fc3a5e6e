"""A copy of 64 MB to the device beside a kernel, and each of the two alone.

python -m benchmarks.copy_beside [--target opencl | sleeping] [--rounds N] [--megabytes M]

The three run in turn; medians, and quartiles of the ratio. On PoCL a copy is a `memcpy` on one of
the processor's cores, so the kernel is one work-item that takes another core and no memory. With
`sleeping` both engines are threads that sleep for as long as theirs would take, and the copy then
moves its bytes: what is left is what the core, the host and its interpreter add.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import os
import queue
import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

BAR = 1.15

# It computes, and neither reads nor writes memory meanwhile.
SPIN = """void spin(__global float *out, __global float *x, long n) {
  float a = x[0];
  for (long k = 0; k < n; ++k) a = a * 0.999f + 0.001f;
  out[0] = a;
}"""
A_SECOND = 2e9  # bytes that the sleeping engine copies, and steps that it computes


def sleeping_target() -> Any:
    """A target whose kernels and copies are two threads that sleep."""
    from torch_tenon.targets.target import Target

    class Event:
        def __init__(self) -> None:
            self.passed, self.time = threading.Event(), 0.0

        def done(self) -> bool:
            return self.passed.is_set()

        def seconds(self) -> float:
            return self.time

        def end(self) -> None:
            self.time = time.monotonic()
            self.passed.set()

    class Engine:
        runs_calls = False

        def __init__(self, address: Callable[[Any], int]) -> None:
            self.address, self.commands = address, queue.SimpleQueue[Callable[[], Any]]()
            threading.Thread(target=self.work, daemon=True).start()

        def work(self) -> None:
            while True:
                self.commands.get()()

        def copy(self, dst: Any, src: Any, nbytes: int) -> None:
            def run() -> None:
                time.sleep(nbytes / A_SECOND)
                ctypes.memmove(self.address(dst), self.address(src), nbytes)

            self.commands.put(run)

        def launch(self, kernel: int, places: Any, numbers: list[int], status: int) -> None:
            self.commands.put(lambda: time.sleep(numbers[0] / A_SECOND))

        def after(self, event: Event) -> None:
            self.commands.put(event.passed.wait)

        def commit(self) -> Event:
            event = Event()
            self.commands.put(event.end)
            return event

        def wait(self, event: Event) -> None:
            event.passed.wait()

    class Sleeping(Target):
        name, host_memory = "sleeping", False

        def __init__(self) -> None:
            self.memory: dict[int, Any] = {}
            self.handles = itertools.count(1)
            self.engines = [Engine(self.address), Engine(self.address)]

        def address(self, end: Any) -> int:
            return end if isinstance(end, int) else ctypes.addressof(self.memory[end[0]]) + end[1]

        def total_memory(self, device: int) -> int:
            return 1 << 32

        def allocate(self, nbytes: int, device: int) -> int:
            self.memory[handle := next(self.handles)] = ctypes.create_string_buffer(nbytes)
            return handle

        def free(self, handle: int, device: int) -> None:
            del self.memory[handle]

        def queue(self, device: int) -> Any:
            return self.engines[0]

        def copy_queues(self, device: int) -> Any:
            return self.engines[1:]

    return Sleeping


Sleeping: Any = None


def kernel(target: str) -> Callable[[Any, int], Any]:
    """Something that computes for so many steps."""
    import torch

    import torch_tenon

    if target == "sleeping":

        def sleep(x: torch.Tensor, n: int) -> torch.Tensor:
            out = torch.empty_like(x)
            torch_tenon.launch(1, [out, x], [n])
            return out

        return sleep

    def spin(x: torch.Tensor, n: int) -> torch.Tensor:
        return torch.empty_like(x)

    source = torch_tenon.KernelSource(
        "opencl",
        SPIN,
        "spin",
        ["float32 result", "float32 x", "int64 n"],
        global_size="1",
        local_size=1,
    )
    made: Callable[[Any, int], Any] = torch_tenon.custom_op(
        "benchmarks::spin(Tensor x, int n) -> Tensor", kernels=[source]
    )(spin)
    return made


def seconds(run: Callable[[], Any]) -> float:
    """How long it takes, to the device's end."""
    import torch

    start = time.perf_counter()
    kept = run()
    torch.accelerator.synchronize()
    took = time.perf_counter() - start
    del kept
    return took


def measure(target: str, rounds: int, nbytes: int) -> dict[str, list[float]]:
    """Seconds of each round, by what ran: a kernel that takes as long as a copy, the copy, both."""
    import torch

    import torch_tenon

    compute = kernel(target)
    x = torch.zeros(1).to("tenon")
    source = torch.zeros(nbytes, dtype=torch.uint8).pin_memory()
    destination = source.to("tenon")
    steps = 10_000_000

    def copies() -> None:
        destination.copy_(source, non_blocking=True)

    def computes() -> Any:
        return compute(x, steps)

    def both() -> Any:
        found = computes()
        torch_tenon.commit()
        copies()
        return found

    for _ in range(3):  # the first are not recorded, and plans are made
        for run in (computes, copies, both):
            seconds(run)
        time.sleep(0.5)
    takes = statistics.median(seconds(copies) for _ in range(5))
    steps = int(steps * takes / statistics.median(seconds(computes) for _ in range(5)))
    for _ in range(3):  # these steps are another plan
        seconds(computes)
        time.sleep(0.3)
    found: dict[str, list[float]] = {"kernel": [], "copy": [], "both": []}
    for _ in range(rounds):
        for name, run in zip(found, (computes, copies, both), strict=True):
            found[name].append(seconds(run))
    return found


def main() -> None:
    """The command."""
    global Sleeping
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", choices=["opencl", "sleeping"], default="opencl")
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--megabytes", type=int, default=64)
    asked = parser.parse_args()
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    if asked.target == "sleeping":
        Sleeping = sleeping_target()
        os.environ["TENON_TARGET"] = f"{__name__}:Sleeping"
    else:
        os.environ["TENON_TARGET"] = "opencl"
    found = measure(asked.target, asked.rounds, asked.megabytes * 1_000_000)
    middle = {name: statistics.median(times) for name, times in found.items()}
    longer = max(middle["kernel"], middle["copy"])
    for name, value in middle.items():
        print(f"{name:8} {1e3 * value:7.2f} ms")
    each = [
        both / max(kernel, copy)
        for kernel, copy, both in zip(found["kernel"], found["copy"], found["both"], strict=True)
    ]
    low, middle_ratio, high = statistics.quantiles(each, n=4)
    print(f"both / longer of the medians: {middle['both'] / longer:.3f}")
    print(f"by round, quartiles: {low:.3f} {middle_ratio:.3f} {high:.3f} (bar: {BAR})")
    print(f"one after the other it would be {(middle['kernel'] + middle['copy']) / longer:.3f}")


if __name__ == "__main__":
    main()
