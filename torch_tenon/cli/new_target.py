"""`tenon new-target`: a target to start from."""

from pathlib import Path
from typing import Annotated

import typer

from torch_tenon.cli.application import app, fail


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
        raise fail(str(error)) from None
    typer.echo(f"{target} and {tests} are written. To use and to test the target:")
    typer.echo(f"  TENON_TARGET={target}:{skeleton.class_of(name)} python your_script.py")
    typer.echo(f"  python -m pytest {tests}")
