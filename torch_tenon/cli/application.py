"""The application `tenon`, and what its commands share."""

import importlib
import importlib.metadata
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

app = typer.Typer(
    name="tenon",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="torch-tenon: the PyTorch device `tenon`.",
)

# What a command runs. Options of the command come before it.
SCRIPT = Annotated[
    Path,
    typer.Argument(
        metavar="script [arguments]",
        exists=True,
        dir_okay=False,
        help="A Python file, and what it is given.",
    ),
]


def fail(text: str) -> typer.Exit:
    """Prints an error; raise what it returns."""
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


def load_torch() -> None:
    """Imports PyTorch, which loads the device, and ends the command where a setting is wrong."""
    try:
        importlib.import_module("torch")
    except (ImportError, RuntimeError) as error:
        raise not_loaded(error) from None


def not_loaded(error: Exception) -> typer.Exit:
    """Prints why PyTorch or the device could not be loaded; raise what it returns."""
    from torch_tenon.cli.installation import root_cause

    return fail(f"PyTorch or the device cannot be loaded: {root_cause(error)}; see `tenon doctor`")


def load_device() -> None:
    """Loads the device, and ends the command where it cannot be."""
    load_torch()
    from torch_tenon import loading

    try:
        loading.register()
    except ImportError as error:
        raise fail(f"{error}") from None


def run_apart(command: Callable[..., None], context: typer.Context, name: str) -> None:
    """Runs a command that parses its own options, `--help` too."""
    apart = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
    apart.command()(command)
    apart(args=context.args, prog_name=name)
