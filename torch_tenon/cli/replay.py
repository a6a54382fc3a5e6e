"""`tenon replay`: a saved window, by its plan and by reference."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from torch_tenon.cli.application import app, fail, load_device


@app.command()
def replay(
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A saved window.")],
) -> None:
    """Run a window that TENON_EXECUTE=verify saved, and show where its plan differs.

    Exit status 1 if it differs.
    """
    load_device()
    from torch_tenon.testing import window as windows

    try:
        window = windows.load(file)
    except windows.NotAWindow as error:
        raise fail(str(error)) from None
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
