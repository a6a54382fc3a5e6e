"""Whole scripts from start to end: what a person with a model and a machine waits for.

python -m benchmarks.scripts.run [--only NAMES] [--unseen] [--rounds N] [--beside N]
    [--json FILE] [--picture FILE]

Each script runs in a process of its own: with eager PyTorch, with `torch.compile`, on tenon with
empty caches, and on tenon in a second process, which finds what the first one has left, once the
builder has done what it was asked for. They take turns. The table has the median of the seconds
from the start of the process to its end, imports included, the ratio to eager PyTorch's, and the
seconds to the first and the tenth step. The numbers that each script yields have to be those of
eager PyTorch at its first steps. With `--beside` so many other processes compute all the while.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.scripts import load_all, load_unseen
from torch_tenon.builder.server import ALL, HEADER

ENGINES = {
    "eager": "eager PyTorch",
    "compile": "torch.compile",
    "cold": "tenon, empty caches",
    "second": "tenon, second process",
}
LIMIT = 900.0  # seconds for one script
MOST_BUILDING = 300.0  # ... for all plans that a script has asked for
# Steps whose numbers are compared, and how far apart they may be: training strays with time.
COMPARED, TOLERANCE = 5, 2e-2
# Numbers that the device draws by itself are others than the CPU's. A net of `sweep` trains by
# steps so long that on the CPU too the last bits of its data decide whether it ends at 0.6 or 0.9.
DRAWS, CHAOTIC = ("samples", "mlp"), ("sweep",)


def measure(name: str, engine: str, cache: str) -> dict[str, Any]:
    """One run of a script. Raises RuntimeError where it fails."""
    env = {**os.environ, "TENON_CACHE_DIR": cache}
    # PyTorch's modules are compiled when they are installed: so are ours.
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    if engine in ("eager", "compile"):
        env["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    kind = "tenon" if engine in ("cold", "second") else engine
    began = time.time()
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.scripts.child", name, kind, repr(began)],
        env=env, capture_output=True, text=True, timeout=LIMIT, check=False,
    )  # fmt: skip
    ended = time.time() - began
    if done.returncode != 0:
        raise RuntimeError(f"{name} with {ENGINES[engine]} failed:\n{done.stderr}")
    return {**json.loads(done.stdout.splitlines()[-1]), "seconds": ended}


def wait_for_plans(cache: str) -> None:
    """Until the builder process, which works on after the script, has nothing left to do."""
    for path in Path(cache).glob("builder-*"):
        if path.is_socket():
            with socket.socket(socket.AF_UNIX) as builder, contextlib.suppress(OSError):
                builder.settimeout(MOST_BUILDING)
                builder.connect(str(path))
                builder.sendall(HEADER.pack(ALL, 0, 0.0))
                builder.recv(HEADER.size)


@contextlib.contextmanager
def neighbours(number: int) -> Iterator[None]:
    """So many processes that compute, each on one processor, as long as the block runs."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(number)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def round_of(name: str, engines: list[str]) -> dict[str, dict[str, Any]]:
    """One run with each engine, the caches empty at first; they differ in nothing else."""
    # A builder that is still at work may write there.
    with tempfile.TemporaryDirectory(prefix="tenon-scripts-", ignore_cleanup_errors=True) as folder:
        found = {}
        for engine in engines:
            if engine == "second":
                wait_for_plans(f"{folder}/cache")
            found[engine] = measure(name, engine, f"{folder}/cache")
    expected = found["eager"]["numbers"][:COMPARED]
    for engine, run in found.items():
        for a, b in zip(run["numbers"][:COMPARED], expected, strict=True):
            same = math.isclose(a, b, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
            if not same and name not in DRAWS + CHAOTIC:
                raise RuntimeError(f"{name} with {ENGINES[engine]} gives {a}, not {b}")
    return found


def scripts(
    only: Annotated[str, typer.Option(help="Scripts, comma-separated.")] = "",
    unseen: Annotated[bool, typer.Option(help="Those that nothing is tuned on.")] = False,
    engines: Annotated[str, typer.Option(help="Beside eager, comma-separated.")] = "",
    rounds: Annotated[int, typer.Option(help="Runs of each.")] = 3,
    beside: Annotated[int, typer.Option(help="Other processes that compute.")] = 0,
    out: Annotated[Path | None, typer.Option("--json", help="Where all figures go.")] = None,
    picture: Annotated[Path | None, typer.Option(help="Where the picture goes, an SVG.")] = None,
) -> None:
    """Times whole scripts from start to end."""
    names = only.split(",") if only else list(load_unseen() if unseen else load_all())
    chosen = ["eager", *(engines.split(",") if engines else list(ENGINES)[1:])]
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    with neighbours(beside):
        for _ in range(rounds):
            for name in names:
                for engine, run in round_of(name, chosen).items():
                    found.setdefault(name, {}).setdefault(engine, []).append(run)
    Console(width=140).print(_table(found, chosen))
    if out is not None:
        out.write_text(json.dumps(found))
    if picture is not None:
        from benchmarks.scripts.picture import draw

        picture.write_text(draw(found, ENGINES))


def _table(found: dict[str, Any], engines: list[str]) -> Table:
    table = Table("script", title="seconds from start to end, and times as fast as eager PyTorch")
    for engine in engines:
        table.add_column(ENGINES[engine])
    table.add_column("to the 1st and 10th step, last column")
    ratios: dict[str, list[float]] = {e: [] for e in engines}
    for name, runs in found.items():
        seconds = {e: statistics.median(r["seconds"] for r in runs[e]) for e in engines}
        row = [name]
        for engine in engines:
            ratio = seconds["eager"] / seconds[engine]
            ratios[engine].append(ratio)
            row.append(f"{seconds[engine]:.2f}  {ratio:.2f}")
        last = runs[engines[-1]]
        at = [
            statistics.median(r["steps"][min(k, len(r["steps"]) - 1)] for r in last) for k in (0, 9)
        ]
        table.add_row(*row, f"{at[0]:.2f}, {at[1]:.2f}")
    means = [
        f"{statistics.geometric_mean(ratios[e]):.2f} (least {min(ratios[e]):.2f})" for e in engines
    ]
    table.add_section()
    table.add_row("geometric mean", *means, "")
    return table


if __name__ == "__main__":
    typer.run(scripts)
