"""`tenon fuzz`: random programs against the CPU."""

import importlib

import typer

from torch_tenon.cli.application import app, run_apart


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
    run_apart(command.fuzz, context, "tenon fuzz")
