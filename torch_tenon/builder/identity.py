"""What everything that is kept on disk depends on, beside what it is made of."""

from __future__ import annotations

import torch

from torch_tenon.compiler.sources import sources
from torch_tenon.targets.target import Target, TargetError


def identity(target: Target) -> str | None:
    """Versions, the target and what its code depends on; None where it compiles nothing."""
    try:
        code = target.backend.identity() if target.backend is not None else None
    except TargetError:
        return None
    if code is None:
        return None
    return "\n".join([torch.__version__, str(torch.version.git_version), sources(), code])
