"""`tenon explain`: what a script did, in the terminal."""

import typer

from torch_tenon.cli.application import SCRIPT, app, load_device


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def explain(
    context: typer.Context,
    script: SCRIPT,
) -> None:
    """Run a script with its arguments; then show windows, kernels by time, and what fused.

    The exit status is the script's.
    """
    load_device()
    from torch_tenon.reports.explaining import explain_script

    found, status = explain_script(script, context.args)
    typer.echo(str(found), err=True)
    raise typer.Exit(status)
