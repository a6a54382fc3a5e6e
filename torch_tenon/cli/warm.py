"""`tenon warm`: what many programs need, compiled before any of them runs."""

import typer

from torch_tenon.cli.application import app, fail, load_torch


@app.command()
def warm() -> None:
    """Compile what many programs need, once for all users of this machine.

    `make` does it after a build. After another compiler or PyTorch was installed it is to be done
    again; without it each user's first program compiles the same.
    """
    load_torch()
    from torch_tenon.device import backend
    from torch_tenon.targets.target import CompileError

    of_target = backend()
    try:
        found = [] if of_target is None else of_target.set_up()
    except (CompileError, OSError) as error:
        raise fail(str(error)) from None
    for line in found or ["nothing is compiled in advance for this target"]:
        typer.echo(line)
