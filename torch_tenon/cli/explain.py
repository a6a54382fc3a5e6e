"""`tenon explain`: what a script did, in the terminal."""

from pathlib import Path
from typing import Annotated

import typer

from torch_tenon.cli.application import app, load_device


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def explain(
    context: typer.Context,
    script: Annotated[
        Path,
        typer.Argument(
            metavar="script [arguments]",
            exists=True,
            dir_okay=False,
            help="A Python file, and what it is given.",
        ),
    ],
) -> None:
    """Run a script with its arguments; then show windows, kernels by time, and what fused.

    The exit status is the script's.
    """
    load_device()
    from torch_tenon.reports.explaining import explain_script

    found, status = explain_script(script, context.args)
    typer.echo(str(found), err=True)
    raise typer.Exit(status)
