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
from torch.utils._pytree import tree_leaves, tree_map

from benchmarks.cases import CASES, Case
from torch_tenon.frontends.dynamo import register

MOVES_MEMORY = (
    "softmax", "log_softmax", "layer norm", "sum all", "sum rows", "sum columns", "variance",
    "transpose", "slices", "gather", "scatter add", "embedding", "adamw",
)  # fmt: skip
BAR = 1.2


def _bytes(x: Any) -> int:
    return sum(t.numel() * t.element_size() for t in tree_leaves(x) if isinstance(t, torch.Tensor))


def _least(case: Case, args: Any, out: Any) -> int:
    """Bytes of the arguments and results, each once: of a table the rows that are looked up, of
    tensors written in place both."""
    if case.name == "embedding":
        return _bytes(args[1]) + 2 * _bytes(out)
    if case.name == "adamw":
        return 2 * _bytes(args) - _bytes(args[1])
    return _bytes(args) + _bytes(out)


def measure(case: Case, scale: float, rounds: int) -> tuple[float, float, int]:
    """Median seconds of the kernel and of the copy, and the bytes that both move."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    function, args = case.make(scale)
    args = tree_map(lambda t: t.to("tenon") if isinstance(t, torch.Tensor) else t, args)
    compiled = torch.compile(function, backend="tenon")
    with torch.no_grad():
        least = _least(case, args, compiled(*args))
        source = torch.zeros(least // 2, dtype=torch.uint8)
        target = torch.zeros_like(source)
        runs: list[Callable[[], Any]] = [lambda: compiled(*args), lambda: target.copy_(source)]
        times: list[list[float]] = [[], []]
        for _ in range(rounds):
            for run, found in zip(runs, times, strict=True):
                run()
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
