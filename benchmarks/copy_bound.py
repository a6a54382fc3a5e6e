"""Kernels that only move memory, each against a plain copy of the bytes that it has to move.

python -m benchmarks.copy_bound [--scale 1.0] [--only NAME ...] [--rounds N]

The kernel and the copy run in turn, into memory that is warm; medians. The bytes are each input and
each output once: what a kernel moves on top counts against it.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.cases import CASES, Bench, Case
from torch_tenon.frontends.dynamo import register

MOVES_MEMORY = (
    "softmax", "log softmax", "layer norm", "sum all", "sum rows", "sum columns", "sum middle",
    "variance", "transposed read", "transposed write", "sliced read", "sliced write", "gather",
    "scatter add", "embedding", "adamw",
)  # fmt: skip
BAR = 1.2


def _compile(function: Any) -> Any:
    return torch.compile(function, backend="tenon")


def measure(case: Case, scale: float, rounds: int) -> tuple[float, float, int]:
    """Median seconds of the kernel and of the copy, and the bytes that both move."""
    torch._dynamo.reset()
    work = case.make(Bench(scale, torch.device("tenon"), case.dtype, _compile))
    least = work.least_bytes(work.run())
    source = torch.zeros(least // 2, dtype=torch.uint8)
    target = torch.zeros_like(source)
    runs: list[Callable[[], Any]] = [work.run, lambda: target.copy_(source)]
    times: list[list[float]] = [[], []]
    for _ in range(rounds):
        for run, found in zip(runs, times, strict=True):
            run()
            torch.accelerator.synchronize()
            start = time.perf_counter()
            run()
            torch.accelerator.synchronize()
            found.append(time.perf_counter() - start)
    return statistics.median(times[0]), statistics.median(times[1]), least


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", nargs="*", default=[])
    options = parser.parse_args()
    register()
    table = Table()
    for head in ("case", "MB", "kernel ms", "copy ms", "times the copy"):
        table.add_column(head, justify="right")
    for case in CASES:
        if case.name not in (options.only or MOVES_MEMORY):
            continue
        kernel, copy, moved = measure(case, options.scale, options.rounds)
        ratio = f"{kernel / copy:.2f}" + ("" if kernel <= BAR * copy else " (slow)")
        table.add_row(
            case.name, f"{moved / 1e6:.0f}", f"{1e3 * kernel:.2f}", f"{1e3 * copy:.2f}", ratio
        )
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
