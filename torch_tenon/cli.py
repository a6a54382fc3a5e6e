"""The command `tenon`.

Only what a command needs is imported, and only when it runs: `tenon --help` loads no PyTorch.
"""

import importlib
import importlib.metadata
import json as json_module
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table

if TYPE_CHECKING:
    from torch_tenon.ops.catalogue import Description
    from torch_tenon.ops.manifest import Entry, Problem

app = typer.Typer(
    name="tenon",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="torch-tenon: the PyTorch device `tenon`.",
)


def _fail(text: str) -> typer.Exit:
    # Errors go where a pipe does not take them for the answer.
    Console(stderr=True).print(f"[bold red]error:[/] {escape(text)}", soft_wrap=True)
    return typer.Exit(1)


def _show_version(wanted: bool) -> None:
    if wanted:
        try:
            version = importlib.metadata.version("torch-tenon")
        except importlib.metadata.PackageNotFoundError:
            version = "(not installed)"
        typer.echo(f"torch-tenon {version}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """torch-tenon: the PyTorch device `tenon`."""


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
        raise _fail("--all is of all ops; leave NAME out")
    if name is not None and check:
        raise _fail("--check is of the whole manifest; leave NAME out")
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
        raise _fail(str(error)) from None


def _load_torch() -> None:
    # Importing torch loads the device, which a wrong setting keeps from loading.
    try:
        importlib.import_module("torch")
    except (ImportError, RuntimeError) as error:
        raise _not_loaded(error) from None


def _not_loaded(error: Exception) -> typer.Exit:
    from torch_tenon.doctor import root_cause

    return _fail(f"PyTorch or the device cannot be loaded: {root_cause(error)}; see `tenon doctor`")


def _load_device() -> None:
    _load_torch()
    from torch_tenon import loading

    try:
        loading.register()
    except ImportError as error:
        raise _fail(f"{error}") from None


def _check_ops(json: bool) -> None:
    from torch_tenon.ops import manifest

    entries = manifest.read()
    _load_torch()
    problems, loaded = _problems(entries)
    if json:
        typer.echo(
            json_module.dumps(
                {
                    "entries": len(entries),
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
        typer.echo(f"{len(entries)} entries, {len(problems)} {noun}")
        if not loaded:
            typer.echo("not checked: what is registered for the device, which is not loaded")
    if problems:
        raise typer.Exit(1)


def _problems(entries: Sequence["Entry"]) -> tuple[list["Problem"], bool]:
    # Without the device loaded, what is registered for it cannot be known and is left out.
    import torch

    from torch_tenon.frontends.eager import route_of
    from torch_tenon.ops import catalogue, manifest
    from torch_tenon.ops.decompositions import DECOMPOSITIONS

    lowered = {e.op for e in entries if e.route == "lowered" and route_of(e.op) == "lowered"}
    registered = library = None
    loaded = torch._C._get_privateuse1_backend_name() == "tenon"
    if loaded:
        from torch_tenon.device import target

        registered, library = catalogue.registered(), set(target().library)
    return manifest.check(entries, registered, set(DECOMPOSITIONS), lowered, library), loaded


def _list_ops(json: bool, every: bool) -> None:
    from torch_tenon.ops import catalogue, manifest

    entries = manifest.load()
    counts = catalogue.counts(entries)
    if json:
        routes = {route: {"listed": n, "ops": total} for route, (n, total) in counts.items()}
        listed = [
            {
                "op": entry.op,
                "route": entry.route,
                "why": entry.why,
                "host_arguments": entry.host_arguments,
                "mutates": entry.mutates,
            }
            for entry in entries.values()
        ]
        typer.echo(json_module.dumps({"routes": routes, "ops": listed}, indent=2))
        return

    console = Console()
    console.print(_route_table(catalogue.counts_by_family(entries)))
    if every:
        console.print(_manifest_table(entries.values()))
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


def _manifest_table(entries: Iterable["Entry"]) -> Table:
    table = Table(title="What the manifest lists", title_justify="left")
    table.add_column("op", overflow="fold")
    table.add_column("route", no_wrap=True)
    table.add_column("notes", overflow="fold")
    for entry in entries:
        notes = [entry.why] if entry.why else []
        if entry.host_arguments:
            notes.append(f"on the host too: {', '.join(entry.host_arguments)}")
        if entry.mutates:
            notes.append(f"also writes: {', '.join(entry.mutates)}")
        table.add_row(escape(entry.op), entry.route, escape("; ".join(notes)))
    return table


def _load_custom(path: Path) -> list[str]:
    _load_device()
    from torch_tenon.ops.kernel_file import load_kernels

    try:
        return list(load_kernels(path))
    except (OSError, ValueError, RuntimeError) as error:
        raise _fail(str(error)) from None


def _describe_custom(names: Sequence[str], json: bool) -> None:
    from torch_tenon.ops import catalogue

    try:
        found = [catalogue.describe_custom(name) for name in names]
    except catalogue.UnknownOp as error:
        raise _fail(str(error)) from None
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
        raise _fail(str(error)) from None
    try:
        descriptions = [catalogue.describe(op, entries) for op in found]
    except (ImportError, RuntimeError) as error:
        raise _not_loaded(error) from None
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
    from torch_tenon.doctor import install_command
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
    }
    for label, text in rows.items():
        if text:
            table.add_row(label, escape(text))
    return Panel(table, title=escape(description.op), title_align="left")


@app.command()
def doctor() -> None:
    """What is here, what is missing, and the command that installs it.

    Exit status 1 if something needed is missing.
    """
    from torch_tenon.doctor import examine

    console = Console()
    with Console(stderr=True).status("Looking around"):
        findings = examine()
    table = Table.grid(padding=(0, 2))
    table.add_column()
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for finding in findings:
        mark = "[green]✓[/]" if finding.ok else "[red]✗[/]" if finding.needed else "[yellow]![/]"
        table.add_row(mark, escape(finding.name), escape(finding.text))
        if not finding.ok and finding.remedy:
            table.add_row("", "", f"[cyan]→ {escape(finding.remedy)}[/]")
    failed = any(finding.failed for finding in findings)
    title = "[red]something needed is missing[/]" if failed else "[green]all that is needed[/]"
    console.print(Panel(table, title=f"tenon doctor: {title}", title_align="left"))
    if failed:
        raise typer.Exit(1)


@app.command()
def cache(
    clear: Annotated[bool, typer.Option("--clear", help="Delete what the cache holds.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """What compiled kernels and tuning results take on disk, and where; `--clear` deletes them.

    Processes that run go on: what they loaded stays loaded.
    """
    from torch_tenon import config
    from torch_tenon.compiler.cache import contents, remove_all

    try:
        directory = Path(config.cache_directory())
    except config.ConfigError as error:
        raise _fail(str(error)) from None
    kinds = contents(directory)
    if clear:
        remove_all(directory)
    total = sum(nbytes for _, nbytes in kinds.values())
    if json:
        found = {kind: {"files": n, "bytes": nbytes} for kind, (n, nbytes) in kinds.items()}
        typer.echo(json_module.dumps({"directory": str(directory), "kinds": found}, indent=2))
        return
    typer.echo(str(directory))
    for kind, (n, nbytes) in sorted(kinds.items()):
        typer.echo(f"  {kind}: {n} files, {nbytes / 2**20:.1f} MiB")
    typer.echo(f"  {'deleted' if clear else 'in all'}: {total / 2**20:.1f} MiB")
    typer.echo("What a process keeps in memory it tells itself: print(torch_tenon.report())")


@app.command()
def new_target(
    name: Annotated[str, typer.Argument(help="Its name, such as npu: letters, digits and _.")],
    folder: Annotated[
        Path, typer.Option(help="Where to write it.", exists=True, file_okay=False)
    ] = Path(),
) -> None:
    """Write a target to start from, NAME.py, and its tests: it works, and all falls back."""
    from torch_tenon.targets import skeleton

    try:
        target, tests = skeleton.write(name, folder)
    except (skeleton.BadName, OSError) as error:
        raise _fail(str(error)) from None
    typer.echo(f"{target} and {tests} are written. To use and to test the target:")
    typer.echo(f"  TENON_TARGET={target}:{skeleton.class_of(name)} python your_script.py")
    typer.echo(f"  python -m pytest {tests}")


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def explain(
    context: typer.Context,
    script: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A Python file.")],
) -> None:
    """Run a script with its arguments; then show windows, plans and kernels by time.

    The exit status is the script's.
    """
    _load_device()
    from torch_tenon.counting import run_and_report

    text, status = run_and_report(script, context.args)
    typer.echo(text, err=True)
    raise typer.Exit(status)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def profile(
    context: typer.Context,
    script: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A Python file.")],
    output: Annotated[
        Path, typer.Option("--output", help="The page; the data goes beside it, as JSON.")
    ] = Path("tenon-profile.html"),
    against: Annotated[
        Path | None, typer.Option("--against", help="The JSON of another run, to compare to.")
    ] = None,
) -> None:
    """Run a script with its arguments, and write a page of what it did and what to change.

    Options of this command come before the script. The exit status is the script's.
    """
    _load_device()
    from torch_tenon.profiler.run import NotAProfile, run

    try:
        written = run(script, context.args, output, against)
    except (NotAProfile, OSError) as error:
        raise _fail(str(error)) from None
    for advice in written.profile["advice"][:3]:
        typer.echo(f"  {advice['text']} (about {advice['saves']:.2f} s)", err=True)
    typer.echo(f"The profile is in {written.page}, its data in {written.data}", err=True)
    raise typer.Exit(written.status)


@app.command(
    # The command parses its options, --help too.
    context_settings={
        "allow_extra_args": True,
        "ignore_unknown_options": True,
        "help_option_names": [],
    },
    add_help_option=False,
)
def fuzz(context: typer.Context) -> None:
    """Run random programs on the device against the CPU."""
    command = importlib.import_module("torch_tenon.testing.fuzz.command")
    _run_apart(command.fuzz, context, "tenon fuzz")


@app.command()
def replay(
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A saved window.")],
) -> None:
    """Run a window that TENON_EXECUTE=verify saved, and show where its plan differs.

    Exit status 1 if it differs.
    """
    _load_device()
    from torch_tenon.testing import window as windows

    try:
        window = windows.load(file)
    except windows.NotAWindow as error:
        raise _fail(str(error)) from None
    console = Console()
    table = Table(title=f"{len(window.calls)} calls", title_justify="left")
    table.add_column("op")
    table.add_column("writes", overflow="fold")
    table.add_column("by plan", overflow="fold")
    found = {d.call: d for d in windows.disagree(window)}
    for k, call in enumerate(window.calls):
        text = f"[red]{escape(found[k].text)}[/]" if k in found else ""
        table.add_row(escape(call[0]), escape(windows.written_text(call)), text)
    console.print(table)
    if not found:
        console.print("the plan agrees with the reference")
        return
    raise typer.Exit(1)


def _run_apart(command: Callable[..., None], context: typer.Context, name: str) -> None:
    apart = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
    apart.command()(command)
    apart(args=context.args, prog_name=name)


@app.command(
    # The suite's own command parses its options, --help too.
    context_settings={
        "allow_extra_args": True,
        "ignore_unknown_options": True,
        "help_option_names": [],
    },
    add_help_option=False,
)
def conformance(context: typer.Context) -> None:
    """Run PyTorch's op, module and optimizer databases on a device against the CPU."""
    from torch_tenon.doctor import install_command

    try:
        command = importlib.import_module("torch_tenon.testing.conformance.command")
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("torch_tenon"):
            raise
        raise _fail(
            f"the conformance suite needs {error.name}, which is not installed; "
            f"run: {install_command('conformance')}"
        ) from None
    _run_apart(command.conformance, context, "tenon conformance")
