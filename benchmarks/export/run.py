"""Exported programs beside AOTInductor, ONNX Runtime and ExecuTorch: `make bench-export`.

Each engine runs in a process of its own; they take turns, and medians are compared. The time to the
first output is from the start of a process whose files are in the page cache.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.export.engines import ENGINES

FOLDER = Path("build/export")
RIVALS = Path(".venv/rivals")  # packages that `make bench-export` installs apart
# Seconds before a turn: threads of an engine wait awake for more work after its last one, and
# whoever came next was up to twice as slow.
PAUSE = 0.3
NAMES = (
    *("mobilenet", "resnet", "vit", "bert", "gpt_prefill", "gpt_decode"),
    *("lstm", "unet", "mixture"),
)


class Worker:
    """A process that has loaded one engine's file."""

    def __init__(self, engine: str, name: str, threads: int) -> None:
        start = time.perf_counter()
        self.process = subprocess.Popen(
            _command("serve", engine, name, threads),
            env=_environment(engine, threads),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.first = self._answer()
        self.started = time.perf_counter() - start
        self.times: list[float] = []
        self.peak = 0

    def run(self, count: int) -> None:
        """Runs it some times more."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()
        answer = self._answer()
        self.times += answer["times"]
        self.peak = answer["peak"]

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                found: dict[str, Any] = json.loads(line)
                return found
        raise RuntimeError(f"it ended with {self.process.wait()}")

    def close(self) -> None:
        """Ends it."""
        self.process.kill()
        self.process.wait()


def _command(what: str, engine: str, name: str, threads: int) -> list[str]:
    path = FOLDER / f"{name}-{engine}{ENGINES[engine].suffix}"
    return [
        sys.executable,
        "-m",
        "benchmarks.export.worker",
        what,
        engine,
        name,
        str(path),
        str(threads),
    ]


def _environment(engine: str, threads: int) -> dict[str, str]:
    found = dict(os.environ) | {"OMP_NUM_THREADS": str(threads)}
    if engine in ("onnxruntime", "executorch"):
        places = [str(RIVALS), str(Path.cwd()), found.get("PYTHONPATH", "")]
        found["PYTHONPATH"] = os.pathsep.join(places)
        found["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    if engine == "aotinductor":
        found["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    return found


def main(
    only: Annotated[str, typer.Option(help="Models, comma-separated.")] = ",".join(NAMES),
    engines: Annotated[str, typer.Option(help="Columns, comma-separated.")] = ",".join(ENGINES),
    threads: Annotated[int, typer.Option(help="Of each engine.")] = 2,
    rounds: Annotated[int, typer.Option(help="Turns of each engine.")] = 15,
    starts: Annotated[int, typer.Option(help="Processes whose first output is timed.")] = 3,
    remake: Annotated[bool, typer.Option(help="Make files that are there.")] = False,
    json_file: Annotated[Path, typer.Option("--json", help="Where the figures go.")] = FOLDER
    / "bench.json",
) -> None:
    """Compare exported programs with other ways to run a model without PyTorch."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    console = Console(width=140)
    names, columns = only.split(","), engines.split(",")
    results: dict[str, dict[str, Any]] = {}
    for name in names:
        results[name] = {}
        for engine in columns:
            error = _made(engine, name, threads, remake)
            if error is not None:
                results[name][engine] = {"failed": error}
                console.print(f"{name}, {engine}: {error.strip().splitlines()[-1]}")
        _measure(
            name, [e for e in columns if e not in results[name]], threads, rounds, starts, results
        )
    _print(console, results, columns)
    json_file.write_text(json.dumps(results, indent=1))


def _made(engine: str, name: str, threads: int, remake: bool) -> str | None:
    command = _command("make", engine, name, threads)
    if Path(command[-2]).exists() and not remake:
        return None
    made = subprocess.run(
        command, env=_environment(engine, threads), capture_output=True, text=True, check=False
    )
    return None if made.returncode == 0 else made.stderr or "it failed"


def _measure(
    name: str,
    engines: list[str],
    threads: int,
    rounds: int,
    starts: int,
    results: dict[str, dict[str, Any]],
) -> None:
    started: dict[str, list[float]] = {e: [] for e in engines}
    workers: dict[str, Worker] = {}
    for turn in range(starts):
        for engine in engines:
            try:
                worker = Worker(engine, name, threads)
            except RuntimeError as error:
                results[name][engine] = {"failed": str(error)}
                continue
            started[engine].append(worker.started)
            if turn == 0:
                workers[engine] = worker
            else:
                worker.close()
    for worker in workers.values():
        worker.run(3)
    count = {e: max(1, int(0.1 / statistics.median(w.times))) for e, w in workers.items()}
    for worker in workers.values():
        worker.times.clear()
    for _ in range(rounds):
        for engine, worker in workers.items():
            time.sleep(PAUSE)
            worker.run(count[engine])
    for engine, worker in workers.items():
        results[name][engine] = {
            "seconds": statistics.median(worker.times),
            "started": statistics.median(started[engine]),
            "error": worker.first["error"],
            "peak": worker.peak,
            "bytes": Path(_command("serve", engine, name, threads)[-2]).stat().st_size,
        }
        worker.close()


def _print(console: Console, results: dict[str, dict[str, Any]], columns: list[str]) -> None:
    title = "milliseconds of a run, and (ms from a process's start to its first output, peak MiB)"
    table = Table("model", *columns, "ours by the best other", title=title)
    ratios = []
    for name, found in results.items():
        cells = []
        for engine in columns:
            x = found.get(engine, {"failed": ""})
            if "failed" in x:
                cells.append("-")
                continue
            wrong = "" if x["error"] < 1e-3 else f" off by {x['error']:.0e}"
            cells.append(
                f"{x['seconds'] * 1e3:.2f} ({x['started'] * 1e3:.0f}, {x['peak'] >> 20}){wrong}"
            )
        others = [x["seconds"] for e, x in found.items() if e != "tenon" and "seconds" in x]
        ratio = ""
        if others and "seconds" in found.get("tenon", {}):
            ratios.append(min(others) / found["tenon"]["seconds"])
            ratio = f"{ratios[-1]:.2f}"
        table.add_row(name, *cells, ratio)
    if ratios:
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        table.add_section()
        table.add_row(
            "geometric mean", *[""] * len(columns), f"{mean:.2f} (least {min(ratios):.2f})"
        )
    console.print(table)


if __name__ == "__main__":
    typer.run(main)
