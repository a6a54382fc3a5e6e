"""`tenon ops`: which op takes which route."""

import json as json_module
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table

from torch_tenon.cli.application import app, fail, load_device, load_torch, not_loaded

if TYPE_CHECKING:
    from torch_tenon.ops.catalogue import Description
    from torch_tenon.ops.manifest import Entry, Problem


@app.command()
def ops(
    name: Annotated[
        str | None,
        typer.Argument(help="An op: lerp, lerp.Scalar, aten::lerp.Scalar. None: all in short."),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Check the manifest; exit status 1 if it is wrong.")
    ] = False,
    load: Annotated[
        Path | None, typer.Option(help="Load the custom ops of a YAML file first.")
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="List every op of the manifest, not the counts alone.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Which op takes which route, and what a backend has to register."""
    from torch_tenon.config import ConfigError
    from torch_tenon.ops.manifest import ManifestError

    if name is not None and every:
        raise fail("--all is of all ops; leave NAME out")
    if name is not None and check:
        raise fail("--check is of the whole manifest; leave NAME out")
    custom = [] if load is None else _load_custom(load)
    spaces = {op.partition("::")[0] for op in custom}
    if custom and not check and (name is None or name.partition("::")[0] in spaces):
        _describe_custom([name] if name else custom, json)
        return
    try:
        if check:
            _check_ops(json)
        elif name is None:
            _list_ops(json, every)
        else:
            _describe_ops(name, json)
    except (ManifestError, ConfigError) as error:
        raise fail(str(error)) from None


def _check_ops(json: bool) -> None:
    from torch_tenon.ops import manifest

    entries = manifest.read()
    load_torch()
    problems, loaded = _problems(entries)
    named = sum(len(entry.ops) for entry in entries)
    if json:
        typer.echo(
            json_module.dumps(
                {
                    "entries": len(entries),
                    "ops": named,
                    "device_loaded": loaded,
                    "problems": [{"op": p.op, "text": p.text} for p in problems],
                },
                indent=2,
            )
        )
    else:
        for problem in problems:
            typer.echo(str(problem))
        noun = "problem" if len(problems) == 1 else "problems"
        typer.echo(f"{named} ops in {len(entries)} entries, {len(problems)} {noun}")
        if not loaded:
            typer.echo("not checked: what is registered for the device, which is not loaded")
    if problems:
        raise typer.Exit(1)


def _problems(entries: Sequence["Entry"]) -> tuple[list["Problem"], bool]:
    # Without the device loaded, what is registered for it cannot be known and is left out.
    import torch

    from torch_tenon.frontends.eager import route_of
    from torch_tenon.ops import catalogue, manifest, manifest_check, native
    from torch_tenon.ops.decompositions import DECOMPOSITIONS

    table = {op: entry for entry in entries for op in entry.ops}
    said = {op for op in native.load() if manifest.of(op, table).route == "lowered"}
    lowered = {op for op in said if route_of(op) == "lowered"}
    registered = library = size_rules = None
    loaded = torch._C._get_privateuse1_backend_name() == "tenon"
    if loaded:
        from torch_tenon import _C
        from torch_tenon.device import target

        registered, library = catalogue.registered(), set(target().library)
        size_rules = set(_C.size_rules())
    implemented = registered, set(DECOMPOSITIONS), lowered, library, size_rules
    return manifest_check.check(entries, *implemented), loaded


def _list_ops(json: bool, every: bool) -> None:
    from torch_tenon.ops import catalogue, manifest

    entries = manifest.load()
    counts = catalogue.counts(entries)
    if json:
        routes = {route: {"listed": n, "ops": total} for route, (n, total) in counts.items()}
        listed = [
            {
                "op": op,
                "route": entry.route,
                "why": entry.why,
                "host_arguments": entry.host_arguments,
                "mutates": entry.mutates,
            }
            for op, entry in manifest.routed(entries)
        ]
        typer.echo(json_module.dumps({"routes": routes, "ops": listed}, indent=2))
        return

    console = Console()
    console.print(_route_table(catalogue.counts_by_family(entries)))
    if every:
        console.print(_manifest_table(manifest.routed(entries)))
    else:
        typer.echo("tenon ops NAME describes one, tenon ops --all lists what the manifest has.")


def _route_table(families: Mapping[str, Mapping[str, int]]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("ops and variants", no_wrap=True)
    totals: Counter[str] = Counter()
    for counts in families.values():
        totals.update(counts)
    for route in totals:
        table.add_column(route, justify="right")
    for name, counts in families.items():
        table.add_row(name, *(str(counts[route] or "") for route in totals))
    table.add_row("[bold]all[/]", *(f"[bold]{total}[/]" for total in totals.values()))
    return table


def _manifest_table(entries: Iterable[tuple[str, "Entry"]]) -> Table:
    table = Table(title="What the manifest lists", title_justify="left")
    table.add_column("op", overflow="fold")
    table.add_column("route", no_wrap=True)
    table.add_column("notes", overflow="fold")
    for op, entry in entries:
        notes = [entry.why] if entry.why else []
        if entry.host_arguments:
            notes.append(f"on the host too: {', '.join(entry.host_arguments)}")
        if entry.mutates:
            notes.append(f"also writes: {', '.join(entry.mutates)}")
        table.add_row(escape(op), entry.route, escape("; ".join(notes)))
    return table


def _load_custom(path: Path) -> list[str]:
    load_device()
    from torch_tenon.ops.kernel_file import load_kernels

    try:
        return list(load_kernels(path))
    except (OSError, ValueError, RuntimeError) as error:
        raise fail(str(error)) from None


def _describe_custom(names: Sequence[str], json: bool) -> None:
    from torch_tenon.ops import catalogue

    try:
        found = [catalogue.describe_custom(name) for name in names]
    except catalogue.UnknownOp as error:
        raise fail(str(error)) from None
    if json:
        typer.echo(json_module.dumps([d.as_dict() for d in found], indent=2))
        return
    for description in found:
        Console().print(_panel(description, None, ""))


def _describe_ops(name: str, json: bool) -> None:
    from torch_tenon.ops import catalogue, manifest

    entries = manifest.load()
    try:
        found = catalogue.find(name)
    except catalogue.UnknownOp as error:
        raise fail(str(error)) from None
    try:
        descriptions = [catalogue.describe(op, entries) for op in found]
    except (ImportError, RuntimeError) as error:
        raise not_loaded(error) from None
    dtypes, missing = _dtypes([d.op for d in descriptions])
    if json:
        rows = []
        for description in descriptions:
            forward, backward = dtypes.get(description.op, (None, None))
            known = {"cpu_dtypes": forward, "cpu_backward_dtypes": backward}
            rows.append(description.as_dict() | known)
        typer.echo(json_module.dumps(rows, indent=2))
        return
    console = Console()
    for description in descriptions:
        console.print(_panel(description, dtypes.get(description.op), missing))


def _dtypes(
    names: Sequence[str],
) -> tuple[dict[str, tuple[tuple[str, ...], tuple[str, ...]]], str]:
    # The dtypes of each op that PyTorch's database has, and why there are none if so.
    from torch_tenon.cli.installation import install_command
    from torch_tenon.ops import catalogue

    with Console(stderr=True).status("Loading PyTorch's op database"):
        try:
            known = catalogue.cpu_dtypes()
        except ModuleNotFoundError as error:
            return {}, f"unknown without {error.name}; {install_command('conformance')}"
    found = {}
    for name in names:
        base = name.partition(".")[0]
        # An in-place variant is in the database under its functional name.
        for candidate in (base, base.removesuffix("_")):
            if candidate in known:
                found[name] = known[candidate]
                break
    return found, "not in PyTorch's op database"


def _panel(
    description: "Description",
    dtypes: tuple[tuple[str, ...], tuple[str, ...]] | None,
    missing: str,
) -> Panel:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    rows = {
        "schema": description.schema,
        "route": f"{description.route}: {description.reason}",
        "compiled": description.compiled,
        "registration": {
            "required": "required of a backend",
            "optional": "optional: PyTorch composes it",
        }.get(description.registration, ""),
        **{
            f"{kind} variant": op
            for kind, op in description.variants.items()
            if op != description.op
        },
        "autograd": description.autograd,
        "CPU dtypes": ", ".join(dtypes[0]) if dtypes else missing,
        "CPU dtypes, backward": ", ".join(dtypes[1]) if dtypes else "",
        "may be on the host": ", ".join(description.host_arguments),
        "also writes": ", ".join(description.mutates),
        "tags": ", ".join(description.tags),
        **{name.replace("_", " "): text for name, text in description.facts.items()},
    }
    for label, text in rows.items():
        if text:
            table.add_row(label, escape(text))
    return Panel(table, title=escape(description.op), title_align="left")
