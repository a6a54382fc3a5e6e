"""What everything that is kept on disk depends on, beside what it is made of."""

from __future__ import annotations

import torch

from torch_tenon.compiler.sources import sources
from torch_tenon.targets.target import Target, TargetError


def identity(target: Target) -> str | None:
    """Versions, the target and what its code depends on; None where it compiles nothing."""
    backend = target.backend
    if backend is None:
        return None
    try:
        code = backend.identity()
    except TargetError:
        return None
    parts = [torch.__version__, str(torch.version.git_version), sources(), code]
    return "\n".join([*parts, backend.capabilities.identity()])
