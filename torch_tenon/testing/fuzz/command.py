"""`tenon fuzz`: random programs on the CPU and on the device, until time is up."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.syntax import Syntax

from torch_tenon.testing.fuzz.kinds import SHARES, Kind
from torch_tenon.testing.fuzz.workers import Worker, shrink

_LINE_EVERY = 30.0  # seconds, where the output is no terminal


class Mode(StrEnum):
    """What `--mode` takes."""

    ALL = "all"
    AUTO = "auto"
    REFERENCE = "reference"
    COMPILED = "compiled"
    VERIFY = "verify"


@dataclass
class Finding:
    """A program that fails, as small as it was made."""

    seed: int
    failure: str
    program: list[Any] | None
    raising: list[int]
    alone: bool  # it fails in a new process, without the programs before it
    history: list[int]  # the seeds that ran before it in its process


def fuzz(
    minutes: Annotated[float, typer.Option(min=0.0, help="How long to look for.")] = 1.0,
    programs: Annotated[int, typer.Option(min=0, help="How many programs; 0: no limit.")] = 0,
    seed: Annotated[int | None, typer.Option(help="The first program; the others follow.")] = None,
    length: Annotated[int, typer.Option(min=1, help="Statements in a program.")] = 25,
    mode: Annotated[Mode, typer.Option(help="Execute mode; all: each after the other.")] = Mode.ALL,
    target: Annotated[str | None, typer.Option(help="Target behind the device.")] = None,
    devices: Annotated[int, typer.Option(min=1, help="How many devices.")] = 2,
    kinds: Annotated[
        str, typer.Option(help=f"Beside plain statements, with commas: {', '.join(SHARES)}; plain.")
    ] = "all",
    timeout: Annotated[float, typer.Option(min=1.0, help="Seconds until it hangs.")] = 300.0,
    shrinking: Annotated[float, typer.Option(min=0.0, help="Seconds to shrink a finding.")] = 120.0,
    keep: Annotated[Path | None, typer.Option(help="Write each finding into this folder.")] = None,
    stop: Annotated[bool, typer.Option("--stop", help="Stop at the first finding.")] = False,
    replay: Annotated[
        Path | None, typer.Option(help="Run the program in this file (JSON), and no other.")
    ] = None,
) -> None:
    """Run random programs on the CPU and on the device; print the ones that differ, made small.

    Programs have plain statements and, by chance, statements of other kinds: --kinds restricts them
    to some, or to plain ones.

    Exit status: 0 if every program agrees, 1 if one does not.
    """
    console = Console()
    environment = {"TENON_DEVICES": str(devices), "TENON_PLAN": "all"}
    if target is not None:
        environment["TENON_TARGET"] = target
    modes = ["reference", "auto", "compiled"] if mode is Mode.ALL else [mode.value]
    wanted = _kinds(kinds)
    worker = Worker(environment, timeout)
    try:
        if replay is not None:
            _replay(console, worker, replay, modes)
            return
        first = random.SystemRandom().randrange(1 << 30) if seed is None else seed
        console.print(f"seed {first}, modes {', '.join(modes)}, kinds {', '.join(wanted)}")
        request = {"length": length, "kinds": wanted, "modes": modes}
        findings = _look(
            console, worker, request, first, minutes * 60, programs, shrinking, keep, stop
        )
    finally:
        worker.stop()
    if findings:
        raise typer.Exit(1)


def _kinds(text: str) -> list[str]:
    """What `--kinds` names."""
    if text == "all":
        return list(SHARES)
    try:
        wanted = [Kind(name.strip()) for name in text.split(",")]
    except ValueError as error:
        raise typer.BadParameter(f"{error}; there are {', '.join(SHARES)}, plain and all") from None
    return [k for k in wanted if k in SHARES]


def _look(
    console: Console,
    worker: Worker,
    request: dict[str, Any],
    first: int,
    seconds: float,
    programs: int,
    shrinking: float,
    keep: Path | None,
    stop: bool,
) -> int:
    start = said = time.monotonic()
    ran = findings = 0
    history: list[int] = []
    with console.status("Running") as status:
        while time.monotonic() - start < seconds and (not programs or ran < programs):
            seed = first + ran
            if worker.process is None or worker.asked == 0:
                history = []
            answer = worker.ask({"seed": seed, **request})
            ran += 1
            if answer["failure"]:
                findings += 1
                found = _examine(worker, seed, request, answer, history, shrinking)
                _show(console, found, request["modes"])
                if keep is not None:
                    _keep(keep, found, request["modes"])
                if stop:
                    break
            history.append(seed)
            text = f"{ran} programs, {findings} findings"
            if console.is_terminal:
                status.update(f"{text}, {(time.monotonic() - start) / 60:.1f} min")
            elif time.monotonic() - said > _LINE_EVERY:
                said = time.monotonic()
                console.print(text)
    console.print(f"{ran} programs, {findings} findings")
    return findings


def _examine(
    worker: Worker,
    seed: int,
    request: dict[str, Any],
    answer: dict[str, Any],
    history: list[int],
    shrinking: float,
) -> Finding:
    """Whether it fails alone, and the smallest program that does."""
    worker.start()
    program = answer.get("program")
    if program is None:
        program = worker.ask({"seed": seed, **request, "modes": []}).get("program")
    found = Finding(seed, answer["failure"], program, answer.get("raising", []), False, history)
    if program is None:
        return found
    again = worker.ask({"program": program, "modes": request["modes"]})
    if not again["failure"]:
        return found
    found.alone, found.failure = True, again["failure"]
    # The structure of a window is tried once in a process.
    once = "got no plan" in found.failure
    small, last = shrink(worker, program, request["modes"], shrinking, once)
    if last:
        found.program, found.failure = small, last["failure"]
        found.raising = last.get("raising", [])
    worker.start()  # what failed may have left anything behind
    return found


def _show(console: Console, found: Finding, modes: Sequence[str]) -> None:
    from torch_tenon.testing.fuzz.program import Program

    console.print(f"[bold red]seed {found.seed}[/]: {escape(found.failure)}", soft_wrap=True)
    if not found.alone:
        console.print(f"only after the programs of the seeds {found.history}", soft_wrap=True)
    if found.program is not None:
        source = Program.from_json(found.program).source(raising=found.raising)
        title = f"run it {'twice or more ' if 'reference' not in modes else ''}on the device"
        console.print(Panel(Syntax(source, "python", word_wrap=True), title=title))


def _keep(folder: Path, found: Finding, modes: Sequence[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    data = {"seed": found.seed, "failure": found.failure, "modes": list(modes)}
    data |= {"alone": found.alone, "history": found.history, "program": found.program}
    (folder / f"{found.seed}.json").write_text(json.dumps(data, indent=1))


def _replay(console: Console, worker: Worker, file: Path, modes: Sequence[str]) -> None:
    data = json.loads(file.read_text())
    program = data["program"] if isinstance(data, dict) else data
    answer = worker.ask({"program": program, "modes": list(modes)})
    if not answer["failure"]:
        console.print("it agrees")
        return
    console.print(escape(answer["failure"]), soft_wrap=True)
    raise typer.Exit(1)
