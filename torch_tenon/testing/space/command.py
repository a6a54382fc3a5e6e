"""`tenon conformance --db space`: calls of ops with any arguments, until time is up."""

from __future__ import annotations

import dataclasses
import os
import random
import shlex
import time
from collections import Counter
from collections.abc import Iterator, Sequence

import typer
from rich.console import Console

from torch_tenon import config
from torch_tenon.testing.conformance.case import Case, CaseResult, Status
from torch_tenon.testing.conformance.databases import UnknownName
from torch_tenon.testing.conformance.pool import Pool, Settings, WorkerFailed
from torch_tenon.testing.space import suite
from torch_tenon.testing.space.running import MODES

_LINE_EVERY = 30.0  # seconds, where the output is no terminal
# An op's stretch of calls, with what is made small: a worker that takes longer hangs.
_CASE_SECONDS = 1800.0


def look(
    console: Console,
    settings: Settings,
    patterns: Sequence[str],
    seed: int | None,
    minutes: float,
    modes: Sequence[str],
) -> int:
    """Runs calls of the ops that `patterns` name (all without any) and prints each that fails as a
    script. `minutes`: how long, 0 for once over the ops. Returns how many stretches failed.
    """
    if unknown := set(modes) - set(MODES):
        raise typer.BadParameter(
            f"{sorted(unknown)[0]!r} is none of {', '.join(MODES)}", param_hint="--modes"
        )
    if modes:
        os.environ[suite.MODES_VARIABLE] = ",".join(modes)
    try:
        cases = suite.list_cases((), patterns)
    except UnknownName as error:
        raise typer.BadParameter(str(error), param_hint="--op") from None
    first = random.SystemRandom().randrange(1 << 30) if seed is None else seed
    console.print(f"seed {first}, {len(cases)} ops, modes {', '.join(modes or MODES)}")
    settings = dataclasses.replace(
        settings, suite="torch_tenon.testing.space.suite", timeout=_CASE_SECONDS
    )
    # What finds a call again is to run it on the same target.
    target = settings.target or (config.TARGET.read() if config.TARGET.is_set() else None)
    options = f" --target {shlex.quote(target)}" if target else ""
    options += f" --modes {','.join(modes)}" if modes else ""
    return _run(console, Pool(settings), _in_turn(cases, first, minutes), options)


def _in_turn(cases: list[Case], first: int, minutes: float) -> Iterator[Case]:
    """The ops again and again, each time with another seed and in another order."""
    end = time.monotonic() + 60 * minutes
    number = first
    while True:
        order = list(cases)
        if minutes:
            random.Random(number).shuffle(order)
        for case in order:
            if minutes and time.monotonic() > end:
                return
            yield dataclasses.replace(case, dtype=str(number))
        if not minutes:
            return
        number += 1


def _run(console: Console, pool: Pool, cases: Iterator[Case], options: str) -> int:
    said = time.monotonic()
    counts: Counter[str] = Counter()
    names = set()
    failed = 0
    try:
        for result in pool.run(cases):
            names.add(result.case.name)
            counts["calls"] += result.samples
            counts["refused by the CPU"] += result.samples_available - result.samples
            for name, check in result.checks.items():
                if check.status is Status.PASS:
                    counts[name] += check.compared
            if result.status not in (Status.PASS, Status.NOT_APPLICABLE):
                failed += 1
                _show(console, result, options)
            if time.monotonic() - said > _LINE_EVERY:
                said = time.monotonic()
                console.print(_summary(counts, names, failed), highlight=False)
    except WorkerFailed as error:
        console.print(str(error), style="red", markup=False)
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        console.print("interrupted", style="yellow")
    console.print(_summary(counts, names, failed), highlight=False)
    return failed


def _summary(counts: Counter[str], names: set[str], failed: int) -> str:
    modes = ", ".join(f"{counts[m]:,} {m}" for m in MODES if counts[m])
    refused = f"{counts['refused by the CPU']:,} more that the CPU refuses"
    return f"{counts['calls']:,} calls of {len(names)} ops ({modes}; {refused}); {failed} fail"


def _show(console: Console, result: CaseResult, options: str) -> None:
    case = result.case
    again = f"tenon conformance --db space --op {case.name} --seed {case.dtype}{options}"
    console.print(f"[bold red]{case.name}[/], {again}", soft_wrap=True, highlight=False)
    texts = [c.message for c in result.checks.values() if c.status is Status.FAIL]
    for text in texts or [f"{result.reason}\n{result.message}"]:
        console.print(text, markup=False, highlight=False, soft_wrap=True)
