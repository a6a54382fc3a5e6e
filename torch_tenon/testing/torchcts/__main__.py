"""Runs TorchCTS on the CPU and on the device, and compares: `make test-torchcts`."""

import json
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from torch_tenon.testing.torchcts.workers import CPU, Outcome, Suite

# Of the nodes that pass on the CPU, how many have to pass on the device.
BARS = {"auto": 0.9995, "compiled": 0.999}

_console = Console(soft_wrap=True)


def main(
    modes: Annotated[str, typer.Option(help="what the device executes by")] = "auto,compiled",
    select: Annotated[str, typer.Option("-k", help="the nodes that match, as pytest has it")] = "",
    processes: Annotated[int, typer.Option("-n", help="how many run at a time")] = 2,
    sample: Annotated[int, typer.Option(help="one node of so many, the same ones each time")] = 1,
    base: Annotated[bool, typer.Option(help="run the CPU, or take what it gave before")] = True,
    failed: Annotated[bool, typer.Option(help="only what did not pass the last time")] = False,
    seconds: Annotated[float, typer.Option(help="after which a node hangs")] = 600,
    results: Annotated[Path, typer.Option(help="outcomes are kept there")] = Path("build/torchcts"),
) -> None:
    """Nodes that pass on the CPU run on the device, and those that fail there are listed.

    The exit status is 1 where too few pass.
    """
    wanted = modes.split(",")
    for mode in wanted:
        if mode not in BARS:
            raise typer.BadParameter(f"{mode!r} is none of {', '.join(BARS)}")
    suite = Suite(results.absolute(), processes, select, sample, seconds)
    on_cpu = _kept(results, CPU)
    if base:
        on_cpu |= suite.run(CPU)
        _keep(results, CPU, on_cpu)
    _say(CPU, on_cpu)
    held = {node for node, outcome in on_cpu.items() if outcome.passed}
    enough = True
    for mode in wanted:
        known = _kept(results, mode)
        nodes = {n for n in held if n in known and not known[n].passed} if failed else held
        if nodes:
            known |= suite.run(mode, nodes)
            _keep(results, mode, known)
        enough &= _report(mode, {node: known[node] for node in held & set(known)})
    raise typer.Exit(int(not enough))


def _report(mode: str, found: dict[str, Outcome]) -> bool:
    """Says how many pass and lists what does not. Are they enough?"""
    passed = sum(outcome.passed for outcome in found.values())
    share = passed / len(found) if found else 1.0
    for node, outcome in sorted(found.items()):
        if not outcome.passed:
            _console.print(f"{mode}: {node}: {outcome.outcome}: {outcome.why}", markup=False)
    _say(mode, found)
    _console.print(
        f"{mode}: of {len(found)} nodes that pass on the CPU {passed} pass ({share:.2%}, "
        f"and {BARS[mode]:.2%} are asked for)"
    )
    return share >= BARS[mode]


def _say(mode: str, found: dict[str, Outcome]) -> None:
    counts = Counter(outcome.outcome for outcome in found.values())
    _console.print(f"{mode}:", ", ".join(f"{n} {what}" for what, n in counts.most_common()))


def _kept(results: Path, mode: str) -> dict[str, Outcome]:
    path = results / f"{mode}.json"
    if not path.exists():
        return {}
    return {node: Outcome(*row) for node, row in json.loads(path.read_text()).items()}


def _keep(results: Path, mode: str, outcomes: dict[str, Outcome]) -> None:
    rows = {node: (outcome.outcome, outcome.why) for node, outcome in sorted(outcomes.items())}
    results.mkdir(parents=True, exist_ok=True)
    (results / f"{mode}.json").write_text(json.dumps(rows, indent=0))


typer.run(main)
