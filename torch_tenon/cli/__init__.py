"""The command `tenon`: a module for each of its commands, in the order in which they are listed.

Only what a command needs is imported, and only when it runs: `tenon --help` loads no PyTorch.
"""

from torch_tenon.cli import (  # noqa: I001 - the order of the list
    ops as ops,
    doctor as doctor,
    cache as cache,
    warm as warm,
    new_target as new_target,
    explain as explain,
    profile as profile,
    fuzz as fuzz,
    replay as replay,
    conformance as conformance,
    programs as programs,
)
from torch_tenon.cli.application import app

__all__ = ["app"]
