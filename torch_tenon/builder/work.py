"""A window's plan, made in the builder process."""

from __future__ import annotations

import logging

import torch

from torch_tenon import _C
from torch_tenon.builder.install import tell_where_files_are
from torch_tenon.builder.planning import plan_window
from torch_tenon.device import target

log = logging.getLogger("torch_tenon.program")

# Nothing is recorded here, which is when others are told.
tell_where_files_are(target())


def make(structure: bytes) -> bool:
    """Makes the plan of a window; true where that, or why there is none, is in a file now."""
    try:
        window = _C.Window.of_structure(structure)
        if window.find_kept():
            return True
        # As they are where the window was recorded.
        torch.set_num_threads(window.threads)
        torch.set_default_dtype(getattr(torch, window.default_dtype.removeprefix("torch.")))
        return plan_window(window)
    except Exception:
        log.exception("a plan was not made")
        return False
