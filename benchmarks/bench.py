"""Eager PyTorch, `torch.compile` and tenon, interleaved in one run; medians.

python benchmarks/bench.py [--scale 1.0] [--only NAME ...] [--json FILE] [--rounds N]
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.cases import CASES, Case
from torch_tenon.frontends.dynamo import register

ENGINES = ("eager", "inductor", "tenon")


def _runner(case: Case, engine: str, scale: float) -> tuple[Any, float]:
    """A function that runs the case once, and the seconds that its first run took."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    function, args = case.make(scale)
    args = copy.deepcopy(args)
    compiled = function if engine == "eager" else torch.compile(function, backend=engine)

    def run() -> None:
        if case.training:
            loss = compiled(*args)
            loss.backward()
        else:
            with torch.no_grad():
                compiled(*args)

    start = time.perf_counter()
    run()
    return run, time.perf_counter() - start


def measure(case: Case, scale: float, rounds: int) -> dict[str, dict[str, float]]:
    """Milliseconds per run and seconds of the first call, by engine."""
    found: dict[str, dict[str, float]] = {}
    runners = {}
    for engine in ENGINES:
        runners[engine], first = _runner(case, engine, scale)
        found[engine] = {"first_s": first}
    times: dict[str, list[float]] = {e: [] for e in ENGINES}
    for _ in range(rounds):
        for engine in ENGINES:
            start = time.perf_counter()
            runners[engine]()
            times[engine].append(time.perf_counter() - start)
    for engine in ENGINES:
        found[engine]["ms"] = 1000 * statistics.median(times[engine][rounds // 5 :])
    return found


def copy_rate() -> float:
    """Bytes per second that a plain copy into warm memory moves (read and written)."""
    x = torch.randn(16 * 2**20)
    y = torch.empty_like(x)
    times = []
    for _ in range(15):
        start = time.perf_counter()
        y.copy_(x)
        times.append(time.perf_counter() - start)
    return 2 * x.nbytes / statistics.median(times)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    register()
    console = Console(width=110)
    console.print(f"{torch.get_num_threads()} threads, copy {copy_rate() / 1e9:.1f} GB/s")
    table = Table()
    for head in ("case", "eager ms", "inductor ms", "tenon ms", "vs eager", "vs inductor",
                 "first inductor s", "first tenon s"):  # fmt: skip
        table.add_column(head, justify="right")
    results = {}
    for case in CASES:
        if options.only and case.name not in options.only:
            continue
        r = results[case.name] = measure(case, options.scale, options.rounds)
        e, i, t = (r[k]["ms"] for k in ENGINES)
        table.add_row(
            case.name, f"{e:.2f}", f"{i:.2f}", f"{t:.2f}", f"{e / t:.2f}", f"{i / t:.2f}",
            f"{r['inductor']['first_s']:.1f}", f"{r['tenon']['first_s']:.1f}",
        )  # fmt: skip
        console.print(f"{case.name}: {e:.2f} {i:.2f} {t:.2f}")
    console.print(table)
    for other in ("eager", "inductor"):
        ratios = [r[other]["ms"] / r["tenon"]["ms"] for r in results.values()]
        mean = math.exp(statistics.fmean(map(math.log, ratios)))
        console.print(f"against {other}: geometric mean {mean:.2f}, least {min(ratios):.2f}")
    if options.json:
        options.json.write_text(json.dumps({"scale": options.scale, "cases": results}, indent=1))


if __name__ == "__main__":
    main()
