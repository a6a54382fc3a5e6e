"""Eager training on the device: what the first steps cost, and what is compiled again.

python -m benchmarks.training [--only NAMES] [--scale X] [--repeats N]

Two tables. Each training case of the benchmark, in new processes with empty caches, by turns with
eager PyTorch on the CPU: its first ten steps beside eager's, and from the tenth step on, how many
windows had a structure that was known, how many ran by a plan, and how many plans were asked for.
Then a model of 12 layers of which one is changed: how many of its windows are compiled again.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.bench import WIDTH
from benchmarks.cases import CASES
from benchmarks.engines import ENGINES
from benchmarks.models import GPT, Block
from torch_tenon.builder.counts import plan_counts

FIRST_STEPS = 10
LATER_STEPS = 100
LAYERS = 12
TRAINING = ("mlp", "gpt", "convnet", "lstm")


def training(
    only: Annotated[str, typer.Option(help="Cases, comma-separated.")] = ",".join(TRAINING),
    scale: Annotated[float, typer.Option(help="Times the number of elements.")] = 1.0,
    repeats: Annotated[int, typer.Option(help="Processes for each engine.")] = 3,
) -> None:
    """The first steps of eager training on the device, and what a changed layer costs."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)
    table = Table("case", "eager s", "tenon s", "ratio", "structure known", "by a plan",
                  "plans asked for later", "plans", "ready after s", title="training")  # fmt: skip
    for name in only.split(","):
        runs: dict[str, list[dict[str, Any]]] = {"eager": [], "tenon-eager": []}
        for _ in range(repeats):
            for engine, found in runs.items():
                found.append(_in_new_process(name, engine, scale))
        eager, ours = (
            statistics.median(r["first_s"] for r in runs[e]) for e in ("eager", "tenon-eager")
        )
        last = runs["tenon-eager"][-1]
        table.add_row(name, f"{eager:.3g}", f"{ours:.3g}", f"{ours / eager:.2f}",
                      f"{last['known']:.1%}", f"{last['by_plan']:.1%}",
                      str(last["asked_later"]), str(last["plans"]),
                      f"{last['ready_s']:.3g}")  # fmt: skip
    console.print(table)
    windows, again = change_a_layer()
    console.print(
        f"one of {LAYERS} layers changed: {again} of a step's {windows} windows compiled again, "
        f"{again / windows:.0%}"
    )


def _in_new_process(name: str, engine: str, scale: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.training", "steps", name, engine, str(scale)],
            env={**os.environ, "TENON_CACHE_DIR": folder},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def steps(name: str, engine_name: str, scale: float) -> dict[str, Any]:
    """The first steps of a case in this process, and on the device what its windows did later."""
    (case,) = (c for c in CASES if c.name == name)
    engine = ENGINES[engine_name]
    run = engine.waiting(engine.make(case, scale).run)
    start = time.perf_counter()
    for _ in range(FIRST_STEPS):
        run()
    found: dict[str, Any] = {"first_s": time.perf_counter() - start}
    if engine.device == "cpu":
        return found
    before = plan_counts()
    for _ in range(LATER_STEPS):
        run()
    after = plan_counts()
    windows = sum(after[k] - before[k] for k in ("hits", "reference"))
    found["known"] = 1 - (after["structures"] - before["structures"]) / windows
    found["by_plan"] = (after["hits"] - before["hits"]) / windows
    found["asked_later"] = _asked(after) - _asked(before)
    while plan_counts()["waiting"]:
        time.sleep(0.01)
    found["plans"] = plan_counts()["ready"]
    found["ready_s"] = time.perf_counter() - start
    return found


def _asked(counts: dict[str, int]) -> int:
    """Plans that were asked for so far."""
    return counts["ready"] + counts["failed"] + counts["waiting"]


class OtherBlock(Block):
    """A block with one op more."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The block's result, squashed."""
        return torch.tanh(super().forward(x))


def change_a_layer() -> tuple[int, int]:
    """Trains a model of 12 layers, then one that differs in one of them: the windows of a step of
    the second, and the plans that it asked for beyond those of the first."""
    for _ in range(2):  # plans are asked for when a structure comes for the second time
        _train(Block)
    before = _asked(plan_counts())
    windows = _train(OtherBlock)
    return windows, _asked(plan_counts()) - before


def _train(middle: type[Block]) -> int:
    """Steps of a model with `middle` for one of its blocks; the windows of the last one."""
    torch.manual_seed(0)
    model = GPT(256, 64, 4, LAYERS, 32)
    model.blocks[LAYERS // 2] = middle(64, 4)
    model = model.to("tenon")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    at = torch.randint(256, (2, 32)).to("tenon")
    windows = 0
    for _ in range(FIRST_STEPS):
        before = _windows()
        optimizer.zero_grad()
        model(at, at.roll(-1, 1)).backward()
        optimizer.step()
        torch.tenon.synchronize()
        windows = _windows() - before
    return windows


def _windows() -> int:
    counts = plan_counts()
    return counts["hits"] + counts["reference"]


if __name__ == "__main__":
    if sys.argv[1:2] == ["steps"]:
        print(json.dumps(steps(sys.argv[2], sys.argv[3], float(sys.argv[4]))))
    else:
        typer.run(training)
