"""Runs a suite of tests by others on the CPU and on the device, and compares.

`make test-torchcts` runs TorchCTS, and `make test-pytorch` PyTorch's own device-generic files.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from torch_tenon.testing.others.lines import place
from torch_tenon.testing.others.suites import Suite, suite_of
from torch_tenon.testing.others.workers import CPU, Outcome, Runner

_console = Console(soft_wrap=True)


def main(
    name: Annotated[str, typer.Argument(metavar="SUITE", help="torchcts or pytorch")],
    modes: Annotated[str, typer.Option(help="what the device executes by")] = "auto,compiled",
    select: Annotated[str, typer.Option("-k", help="the nodes that match, as pytest has it")] = "",
    processes: Annotated[int, typer.Option("-n", help="how many run at a time")] = 2,
    sample: Annotated[int, typer.Option(help="one node of so many, the same ones each time")] = 1,
    base: Annotated[bool, typer.Option(help="run the CPU, or take what it gave before")] = True,
    failed: Annotated[bool, typer.Option(help="only what did not pass the last time")] = False,
    seconds: Annotated[float, typer.Option(help="after which a node hangs")] = 600,
    results: Annotated[Path | None, typer.Option(help="outcomes are kept there")] = None,
) -> None:
    """Nodes that pass on the CPU run on the device, and those that fail there are listed.

    The exit status is 1 where too few pass.
    """
    try:
        suite, wanted = suite_of(name), modes.split(",")
        suite.prepare()
    except (FileNotFoundError, ModuleNotFoundError) as error:
        raise typer.BadParameter(str(error)) from error
    for mode in wanted:
        if mode not in suite.BARS:
            raise typer.BadParameter(f"{mode!r} is none of {', '.join(suite.BARS)}")
    results = results or Path("build") / name
    runner = Runner(name, results.absolute(), processes, select, sample, seconds)
    on_cpu = _kept(results, CPU)
    if base:
        on_cpu |= runner.run(CPU)
        _keep(results, CPU, on_cpu)
    _say(CPU, on_cpu)
    held = {n for n, outcome in on_cpu.items() if outcome.passed and place(n) % sample == 0}
    enough = True
    for mode in wanted:
        known = _kept(results, mode)
        nodes = {n for n in held if n in known and not known[n].passed} if failed else held
        if nodes:
            known |= runner.run(mode, nodes)
            _keep(results, mode, known)
        enough &= _report(suite, mode, {node: known[node] for node in held & set(known)}, len(held))
    raise typer.Exit(int(not enough))


def _report(suite: Suite, mode: str, found: dict[str, Outcome], held: int) -> bool:
    """Says how many pass and lists what does not. Are they enough?"""
    _say(mode, found)
    if not suite.SKIPPED_COUNTS:
        found = {node: outcome for node, outcome in found.items() if outcome.outcome != "skipped"}
    passed = sum(outcome.passed for outcome in found.values())
    share = passed / len(found) if found else 1.0
    for node, outcome in sorted(found.items()):
        if not outcome.passed:
            _console.print(f"{mode}: {node}: {outcome.outcome}: {outcome.why}", markup=False)
    _console.print(
        f"{mode}: {held} nodes pass on the CPU; of {len(found)} that are for the device {passed} "
        f"pass ({share:.2%}, and {suite.BARS[mode]:.2%} are asked for)"
    )
    return share >= suite.BARS[mode]


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
