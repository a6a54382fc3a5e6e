"""`tenon new-target`: a target to start from."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from torch_tenon.cli.application import app, fail


class Start(StrEnum):
    """What `--start` takes: each is the one before, and more."""

    MEMORY = "memory"
    LIBRARY = "library"
    LOOPS = "loops"


@app.command()
def new_target(
    name: Annotated[str, typer.Argument(help="Its name, such as npu: letters, digits and _.")],
    folder: Annotated[
        Path, typer.Option(help="Where to write it.", exists=True, file_okay=False)
    ] = Path(),
    start: Annotated[
        Start,
        typer.Option(
            help="What it has: memory and a queue, and all falls back; a kernel of the hardware's "
            "library too; generated loops and reductions too."
        ),
    ] = Start.MEMORY,
) -> None:
    """Write a target to start from, NAME.py, and its tests. It works as it is."""
    from torch_tenon.targets import starts

    try:
        target, tests = starts.write(name, folder, start)
    except (starts.BadName, OSError) as error:
        raise fail(str(error)) from None
    typer.echo(f"{target} and {tests} are written. To use and to test the target:")
    typer.echo(f"  TENON_TARGET={target}:{starts.class_of(name)} python your_script.py")
    typer.echo(f"  python -m pytest {tests}")
    typer.echo(f"  tenon conformance --target {target}:{starts.class_of(name)} --db ops --ops add")
