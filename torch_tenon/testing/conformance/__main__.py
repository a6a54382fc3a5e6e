"""Runs `tenon conformance` alone: `python -m torch_tenon.testing.conformance`."""

import typer

from .command import conformance

typer.run(conformance)
