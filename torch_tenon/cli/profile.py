"""`tenon profile`: what a script did, as a page."""

from pathlib import Path
from typing import Annotated

import typer

from torch_tenon.cli.application import SCRIPT, app, fail, load_device


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def profile(
    context: typer.Context,
    script: SCRIPT,
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
    load_device()
    from torch_tenon.reports.profiler.run import NotAProfile, run

    try:
        written = run(script, context.args, output, against)
    except (NotAProfile, OSError) as error:
        raise fail(str(error)) from None
    for advice in written.profile["advice"][:3]:
        typer.echo(f"  {advice['text']} (about {advice['saves']:.2f} s)", err=True)
    typer.echo(f"The profile is in {written.page}, its data in {written.data}", err=True)
    raise typer.Exit(written.status)
