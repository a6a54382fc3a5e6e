"""`tenon cache`: what is kept on disk."""

import json as json_module
from pathlib import Path
from typing import Annotated

import typer

from torch_tenon.cli.application import app, fail


@app.command()
def cache(
    clear: Annotated[bool, typer.Option("--clear", help="Delete what the cache holds.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """What compiled kernels and tuning results take on disk, and where; `--clear` deletes them.

    Processes that run go on: what they loaded stays loaded.
    """
    from torch_tenon import config
    from torch_tenon.compiler.cache import contents, remove_all

    try:
        directory = Path(config.cache_directory())
    except config.ConfigError as error:
        raise fail(str(error)) from None
    kinds = contents(directory)
    if clear:
        remove_all(directory)
    total = sum(nbytes for _, nbytes in kinds.values())
    if json:
        found = {kind: {"files": n, "bytes": nbytes} for kind, (n, nbytes) in kinds.items()}
        typer.echo(json_module.dumps({"directory": str(directory), "kinds": found}, indent=2))
        return
    typer.echo(str(directory))
    for kind, (n, nbytes) in sorted(kinds.items()):
        typer.echo(f"  {kind}: {n} files, {nbytes / 2**20:.1f} MiB")
    typer.echo(f"  {'deleted' if clear else 'in all'}: {total / 2**20:.1f} MiB")
    typer.echo(f"  at most: {config.CACHE_LIMIT.read() / 2**20:.0f} MiB (TENON_CACHE_LIMIT)")
    typer.echo("What a process keeps in memory it tells itself: print(torch_tenon.report())")
