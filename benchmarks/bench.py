"""Eager PyTorch, `torch.compile` and tenon in one run: `make bench`, `python -m benchmarks.bench`.

Engines are interleaved and medians compared; see `measure.py` for what is counted and how.
"""

from __future__ import annotations

import json
import math
import os
import platform
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.cases import CASES
from benchmarks.engines import ENGINES, Engine
from benchmarks.first_call import first_calls
from benchmarks.measure import ceilings, least_seconds, measure
from benchmarks.picture import draw

OURS, OTHERS = ("tenon", "tenon-eager"), ("eager", "inductor")
COMPILED = ("inductor", "tenon")
WIDTH = 120  # where the output is a file
QUICK = {"rounds": 7, "seconds": 3.0}


def bench(
    only: Annotated[
        str, typer.Option(help="Cases whose name has one of these words, comma-separated.")
    ] = "",
    scale: Annotated[float, typer.Option(help="Times the number of elements.")] = 1.0,
    rounds: Annotated[int, typer.Option(help="Most rounds of a case.")] = 31,
    seconds: Annotated[float, typer.Option(help="A case has no more rounds after this.")] = 8.0,
    engines: Annotated[str, typer.Option(help="Columns, comma-separated.")] = ",".join(ENGINES),
    first_call: Annotated[bool, typer.Option(help="Measure first calls, in new processes.")] = True,
    quick: Annotated[bool, typer.Option(help="Few rounds, no first calls.")] = False,
    json_file: Annotated[Path, typer.Option("--json", help="Where the figures go.")] = Path(
        "build/bench.json"
    ),
    picture: Annotated[Path, typer.Option(help="Where the picture goes, an SVG.")] = Path(
        "build/bench.svg"
    ),
) -> None:
    """Compare eager PyTorch, torch.compile and tenon."""
    chosen = [_engine(name) for name in engines.split(",")]
    words = [w.strip() for w in only.split(",") if w.strip()]
    cases = [c for c in CASES if not words or any(w in c.name for w in words)]
    if not cases:
        raise typer.BadParameter(f"no case is named like {only!r}; there are "
                                 + ", ".join(c.name for c in CASES))  # fmt: skip
    if quick:
        rounds, seconds, first_call = QUICK["rounds"], QUICK["seconds"], False
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)
    load = os.getloadavg()[0]
    if load > 0.5:
        console.print(f"[yellow]the machine is busy (load {load:.1f}): ratios will be noisy[/]")
    found: dict[str, Any] = {"machine": machine(), "scale": scale, "ceilings": ceilings()}
    _print_head(console, chosen, found)
    results: dict[str, Any] = {}
    failed: dict[str, str] = {}
    for case in cases:
        try:
            with console.status(f"{case.name}: running"):
                result = measure(case, chosen, scale, rounds, seconds)
        except Exception as error:  # one case that fails is told, and does not cost the others
            failed[case.name] = f"{type(error).__name__}: {error}"
            console.print(f"[red]{case.name} failed:[/] {escape(failed[case.name])}")
            continue
        results[case.name] = result
        least, kind = least_seconds(result, found["ceilings"])
        result |= {"least_ms": 1000 * least, "ceiling": kind}
        if first_call:
            for engine in chosen:
                if engine.name in COMPILED:
                    with console.status(f"{case.name}: first calls of {engine.name}"):
                        cold, warm = first_calls(case, engine, scale)
                    result["engines"][engine.name] |= {"first_s": cold, "first_warm_s": warm}
        console.print(f"{case.name}: " + ", ".join(
            f"{name} {e['ms']:.3g} ms" for name, e in result["engines"].items()))  # fmt: skip
    names = [e.name for e in chosen]
    for table in tables(results, names):
        console.print(table)
    found |= {"cases": results, "failed": failed, "summary": summary(results, names)}
    for line in found["summary"]:
        console.print(line)
    for path, text in (
        (json_file, json.dumps(found, indent=1)),
        (picture, draw(results, names, f"Share of the ceiling, {found['machine']['processor']}")),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    console.print(f"figures: {json_file}, picture: {picture}")
    if failed:
        console.print(f"[red]failed:[/] {', '.join(failed)}")
        raise typer.Exit(1)


def _engine(name: str) -> Engine:
    if name.strip() not in ENGINES:
        raise typer.BadParameter(f"{name!r} is none of {', '.join(ENGINES)}")
    return ENGINES[name.strip()]


def machine() -> dict[str, Any]:
    """What the figures depend on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    return {
        "processor": models[0] if models else platform.processor(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "load_before": os.getloadavg()[0],
    }


def _print_head(console: Console, engines: Sequence[Engine], found: Mapping[str, Any]) -> None:
    m, c = found["machine"], found["ceilings"]
    console.print(f"{m['processor']}, {m['threads']} threads, PyTorch {m['torch']}")
    console.print(
        f"ceilings: copy {c['copy'] / 1e9:.1f} GB/s, matrix product float32 "
        f"{c['float32'] / 1e9:.0f}, bfloat16 {c['bfloat16'] / 1e9:.0f} GFLOP/s"
    )
    for engine in engines:
        console.print(f"[bold]{engine.name}[/]: {engine.what}")


Columns = list[tuple[str, Callable[[Mapping[str, Any]], str]]]


def tables(results: Mapping[str, Any], engines: Sequence[str]) -> list[Table]:
    """Times with ratios and the share of the ceiling; memory, and first calls where measured."""
    times: Columns = [(f"{n}\nms", lambda r, n=n: f"{r['engines'][n]['ms']:.3g}") for n in engines]
    for ours in OURS:
        for other in OTHERS:
            if ours in engines and other in engines:
                head = f"{ours}\nx {other}"
                times.append((head, lambda r, o=ours, t=other: f"{ratio(r, o, t):.2f}"))
    if "tenon" in engines:
        times.append(("of the\nceiling", _share))
    rest: Columns = [
        (f"{n}\nMiB", lambda r, n=n: f"{r['engines'][n]['peak_bytes'] / 2**20:.1f}")
        for n in engines
    ]
    if any("first_s" in e for r in results.values() for e in r["engines"].values()):
        for n in [n for n in engines if n in COMPILED]:
            rest.append((f"{n}\nfirst s", lambda r, n=n: _seconds(r, n, "first_s")))
            rest.append((f"{n}\nwarm s", lambda r, n=n: _seconds(r, n, "first_warm_s")))
    return [_table(results, times, TIMES), _table(results, rest, REST)]


TIMES = (
    "ms: median of a run. x: how many times as fast as that column. Of the ceiling: the share of "
    "what the bandwidth (b) or compute (c) of this machine allows that tenon reaches."
)
REST = (
    "MiB: the most memory of a run, beyond inputs and parameters. First: seconds of the first "
    "call, tracing included, with empty caches; warm: in a new process, with the caches that the "
    "first one left."
)


def _table(results: Mapping[str, Any], columns: Columns, caption: str) -> Table:
    made = Table(caption=caption)
    made.add_column("case", no_wrap=True)
    for head, _ in columns:
        made.add_column(head, justify="right", no_wrap=True)
    for case, result in results.items():
        made.add_row(case, *(text(result) for _, text in columns))
    return made


def _share(result: Mapping[str, Any]) -> str:
    share = result["least_ms"] / result["engines"]["tenon"]["ms"]
    return f"{100 * share:.2g} % {result['ceiling'][0]}"


def _seconds(result: Mapping[str, Any], engine: str, what: str) -> str:
    found = result["engines"][engine].get(what)
    return "" if found is None else f"{found:.2f}"


def ratio(result: Mapping[str, Any], ours: str, other: str, what: str = "ms") -> float:
    """How many times less of `what` the first engine takes than the second."""
    return float(result["engines"][other][what] / result["engines"][ours][what])


def summary(results: Mapping[str, Any], engines: Sequence[str]) -> list[str]:
    """Geometric means, with the least ratio by name."""
    lines = []
    for ours in OURS:
        for other in OTHERS:
            if ours in engines and other in engines:
                lines.append(_mean(f"{ours} against {other}", results, ours, other, "ms"))
    if all(name in engines for name in COMPILED):
        for what, text in (("first_s", "first call"), ("first_warm_s", "first call, warm caches")):
            if all(what in r["engines"]["tenon"] for r in results.values()):
                lines.append(_mean(f"{text}, tenon against inductor", results, *_PAIR, what))
    return lines


_PAIR = ("tenon", "inductor")


def _mean(text: str, results: Mapping[str, Any], ours: str, other: str, what: str) -> str:
    ratios = {name: ratio(r, ours, other, what) for name, r in results.items()}
    mean = math.exp(statistics.fmean(map(math.log, ratios.values())))
    least = min(ratios, key=lambda name: ratios[name])
    return f"{text}: geometric mean {mean:.2f}, least {ratios[least]:.2f} ({least})"


if __name__ == "__main__":
    typer.run(bench)
