"""`tenon conformance`: the command line of the suite."""

from __future__ import annotations

import importlib
import os
import time
from collections import Counter
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from torch_tenon import config
from torch_tenon.targets import BUILT_IN

from .baseline import BadBaseline, Baseline, Changes, compare, default_path
from .case import KINDS, Case, CaseResult, Status
from .pool import SUITE, Pool, Settings, WorkerFailed
from .report import as_json, write_html, write_json
from .summary import COLOURS, show, show_case

# Where the output is no terminal, a line of progress comes this often, in seconds.
LINE_EVERY = 30.0


class Database(StrEnum):
    """What `--db` takes."""

    OPS = "ops"
    MODULES = "modules"
    OPTIMIZERS = "optimizers"
    SPACE = "space"
    ALL = "all"


def conformance(
    db: Annotated[
        Database,
        typer.Option(help="Which of PyTorch's databases, or calls with any arguments: space."),
    ] = Database.ALL,
    ops: Annotated[
        list[str] | None,
        typer.Option(
            "--ops", "--op", help="Names to run, shell style; again or with commas for more."
        ),
    ] = None,
    dtype: Annotated[
        list[str] | None, typer.Option(help="Dtypes to run; again or with commas for more.")
    ] = None,
    device: Annotated[str, typer.Option(help="Device under test.")] = "tenon",
    target: Annotated[str | None, typer.Option(help="Target behind it (TENON_TARGET).")] = None,
    samples: Annotated[
        int, typer.Option(min=0, help="Inputs for each pair, the largest and others; 0 runs all.")
    ] = 0,
    jobs: Annotated[int, typer.Option(min=0, help="Worker processes; 0: one per core.")] = 0,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds until a case hangs.")] = 180.0,
    json: Annotated[Path | None, typer.Option(help="Write everything found here.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page with the table here.")] = None,
    baseline: Annotated[
        Path | None, typer.Option(help="Compare with this file, not the recorded one.")
    ] = None,
    update_baseline: Annotated[bool, typer.Option(help="Record what does not pass now.")] = False,
    minutes: Annotated[
        float, typer.Option(min=0.0, help="space: how long to look; 0: once over all ops.")
    ] = 0.0,
    seed: Annotated[int | None, typer.Option(help="space: which calls are drawn.")] = None,
    modes: Annotated[str, typer.Option(help="space: how the device runs, with commas.")] = "",
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show each case that does not pass, in full.")
    ] = False,
    suite: Annotated[str, typer.Option(hidden=True, help="Module that runs the cases.")] = SUITE,
) -> None:
    """Run PyTorch's op, module and optimizer databases on a device against the CPU.

    A target that is not built in runs by plans, and so by its own kernels, unless TENON_EXECUTE
    says otherwise. Exit status: 0 if nothing got worse than the baseline, 1 if something did, 2 on
    bad usage.
    """
    console = Console()
    settings = Settings(
        device=device,
        jobs=jobs or len(os.sched_getaffinity(0)),
        timeout=timeout,
        limit=samples,
        target=target,
        suite=suite,
        execute=_mode_for(target or _target_of(device)),
    )
    if db is Database.SPACE:
        from torch_tenon.testing.space.command import look

        failed = look(console, settings, _split(ops), seed, minutes, _split([modes]))
        raise typer.Exit(1 if failed else 0)
    path = baseline or default_path(device, target or _target_of(device))
    kinds = KINDS if db is Database.ALL else (str(db),)
    recorded = _read_baseline(path, required=baseline is not None and not update_baseline)
    _check_device(device)
    pool = Pool(settings)
    # The workers import PyTorch's databases while this process does.
    pool.start()
    try:
        cases = _choose(suite, kinds, _split(ops), _split(dtype))
    except BaseException:
        pool.close()
        raise
    began = time.monotonic()
    results: list[CaseResult] = []
    interrupted = False
    try:
        _run(console, pool, cases, results, verbose)
    except KeyboardInterrupt:
        interrupted = True
    except WorkerFailed as error:
        console.print(str(error), style="red", markup=False)
        raise typer.Exit(2) from None
    order = {case: index for index, case in enumerate(cases)}
    results.sort(key=lambda result: order[result.case])
    changes = compare(recorded, results)
    if verbose and len(results) == 1 and results[0].status is Status.PASS:
        show_case(console, results[0])
    has_baseline = recorded is not None
    show(console, results, changes, device=device, target=target, has_baseline=has_baseline)
    seconds = time.monotonic() - began
    console.print(f"{len(results)} of {len(cases)} cases in {seconds:.0f} s, {settings.jobs} jobs")
    _write_reports(console, results, changes, settings, seconds, json, html)
    if interrupted:
        console.print("interrupted: the baseline is left as it is", style="yellow")
        raise typer.Exit(130)
    if update_baseline:
        whole = set(kinds) if not ops and not dtype and not samples else set()
        (recorded or Baseline()).updated(results, whole).write(path)
        console.print(f"recorded in {path}")
        return
    if recorded is None:
        console.print("no baseline is recorded: every case is expected to pass", soft_wrap=True)
    raise typer.Exit(1 if changes.worse else 0)


def _split(values: Iterable[str] | None) -> list[str]:
    return [part for value in values or () for part in value.split(",") if part]


def _target_of(device: str) -> str | None:
    # The device is built for one target, and has a baseline for each.
    return config.TARGET.read() if device == "tenon" else None


def _mode_for(target: str | None) -> str | None:
    # Somebody is writing this target, and wants to hear of its kernels: not of the host's, which
    # run until plans are ready.
    written_here = target is not None and target not in BUILT_IN
    return "compiled" if written_here and not config.EXECUTE.is_set() else None


def _read_baseline(path: Path, *, required: bool) -> Baseline | None:
    try:
        if required and not path.exists():
            raise BadBaseline(f"there is no {path}; record it with --update-baseline")
        return Baseline.read(path) if path.exists() else None
    except BadBaseline as error:
        raise typer.BadParameter(str(error), param_hint="--baseline") from None


def _check_device(device: str) -> None:
    import torch

    try:
        torch.device(device)
    except RuntimeError as error:
        message = f"PyTorch knows no device {device!r} here: {str(error).splitlines()[0]}"
        raise typer.BadParameter(message, param_hint="--device") from None


def _choose(suite: str, kinds: Iterable[str], patterns: list[str], dtypes: list[str]) -> list[Case]:
    """The cases asked for; what exists nowhere is bad usage."""
    from .databases import UnknownName

    try:
        return list(importlib.import_module(suite).list_cases(kinds, patterns, dtypes))
    except UnknownName as error:
        raise typer.BadParameter(str(error), param_hint="--ops/--dtype") from None


def _run(
    console: Console,
    pool: Pool,
    cases: list[Case],
    results: list[CaseResult],
    verbose: bool,
) -> None:
    """Runs `cases` into `results`, with a bar on a terminal and a line now and then elsewhere."""
    counts: Counter[Status] = Counter()
    columns = (
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TextColumn("{task.fields[counts]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("[dim]{task.fields[last]}"),
    )
    shown = time.monotonic()
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("cases", total=len(cases), counts="", last="starting workers")
        for result in pool.run(cases):
            results.append(result)
            counts[result.status] += 1
            text = ", ".join(f"[{COLOURS[s]}]{counts[s]} {s}[/]" for s in Status if counts[s])
            progress.update(task, advance=1, counts=text, last=result.case.name)
            if verbose and result.status is not Status.PASS:
                show_case(progress.console, result)
            if not console.is_terminal and time.monotonic() - shown > LINE_EVERY:
                shown = time.monotonic()
                console.print(f"{len(results)} of {len(cases)}: {text}")


def _write_reports(
    console: Console,
    results: list[CaseResult],
    changes: Changes,
    settings: Settings,
    seconds: float,
    json: Path | None,
    html: Path | None,
) -> None:
    if not json and not html:
        return
    report = as_json(
        results, changes, device=settings.device, target=settings.target, seconds=seconds
    )
    for path, write in ((json, write_json), (html, write_html)):
        if path:
            write(path, report)
            console.print(f"wrote {path}")
