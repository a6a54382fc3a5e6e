"""A copy of 64 MB to the device beside a kernel, and each of the two alone.

python -m benchmarks.copy_beside [--target opencl | sleeping] [--rounds N] [--megabytes M]

The three run in turn; medians, and quartiles of the ratio. On PoCL a copy is a `memcpy` on one of
the processor's cores, so the kernel is one work-item that takes another core and no memory. With
`sleeping` both engines are threads that sleep for as long as theirs would take, and the copy then
moves its bytes: what is left is what the core, the host and its interpreter add.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

BAR = 1.15
TARGETS = {"opencl": "opencl", "sleeping": "benchmarks.sleeping:Sleeping"}

# It computes, and neither reads nor writes memory meanwhile.
SPIN = """__kernel void spin(__global float *out, __global float *x, long n) {
  float a = x[0];
  for (long k = 0; k < n; ++k) a = a * 0.999f + 0.001f;
  out[0] = a;
}"""


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
        global_size=["1"],
        local_size=["1"],
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
    """Seconds of each round, by what ran: a kernel that takes as long as a copy, the copy, both.
    And how many processors the process had while both ran: others may want them as well."""
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
    found: dict[str, list[float]] = {"kernel": [], "copy": [], "both": [], "processors": []}
    for _ in range(rounds):
        for name, run in (("kernel", computes), ("copy", copies), ("both", both)):
            before = time.process_time()
            found[name].append(seconds(run))
        found["processors"].append((time.process_time() - before) / found["both"][-1])
    return found


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", choices=list(TARGETS), default="opencl")
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--megabytes", type=int, default=64)
    asked = parser.parse_args()
    os.environ["TENON_TARGET"] = TARGETS[asked.target]
    found = measure(asked.target, asked.rounds, asked.megabytes * 1_000_000)
    processors = found.pop("processors")
    middle = {name: statistics.median(times) for name, times in found.items()}
    longer = max(middle["kernel"], middle["copy"])
    least = {name: min(times) for name, times in found.items()}
    for name, value in middle.items():
        print(f"{name:8} {1e3 * value:7.2f} ms, at least {1e3 * least[name]:.2f} ms")
    each = [
        both / max(kernel, copy)
        for kernel, copy, both in zip(found["kernel"], found["copy"], found["both"], strict=True)
    ]
    low, middle_ratio, high = statistics.quantiles(each, n=4)
    print(f"both / longer of the medians: {middle['both'] / longer:.3f}")
    print(f"of the least times: {least['both'] / max(least['kernel'], least['copy']):.3f}")
    print(f"by round, quartiles: {low:.3f} {middle_ratio:.3f} {high:.3f} (bar: {BAR})")
    print(f"processors that both had: {statistics.median(processors):.2f}")
    print(f"one after the other it would be {(middle['kernel'] + middle['copy']) / longer:.3f}")


if __name__ == "__main__":
    main()
