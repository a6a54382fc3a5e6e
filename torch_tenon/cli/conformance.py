"""`tenon conformance`: PyTorch's databases against the CPU."""

import importlib

import typer

from torch_tenon.cli.application import app, fail, run_apart


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
    from torch_tenon.cli.installation import install_command

    try:
        command = importlib.import_module("torch_tenon.testing.conformance.command")
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("torch_tenon"):
            raise
        raise fail(
            f"the conformance suite needs {error.name}, which is not installed; "
            f"run: {install_command('conformance')}"
        ) from None
    run_apart(command.conformance, context, "tenon conformance")
