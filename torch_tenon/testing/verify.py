"""`TENON_EXECUTE=verify`: what happens when a window's plan and its reference disagree."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch

from torch_tenon import config
from torch_tenon.compiler.cache import digest
from torch_tenon.testing import window as windows
from torch_tenon.testing.window import Window


class PlanDiffers(UserWarning):
    """A compiled plan gave other numbers than PyTorch's kernels; those of the kernels stay."""


def report(
    description: tuple[Any, ...],
    numbers: list[int],
    before: list[bytes],
    by_plan: list[bytes],
    by_reference: list[bytes],
) -> None:
    """Called by the core with a window whose two runs left different bytes.

    Where they differ by more than rounding: names the first op whose result does, saves a window
    that shows it, and warns with PlanDiffers.
    """
    _, calls, slots = description
    window = Window(calls, slots, before, numbers)
    found = windows.compare(window, _memory(window, by_plan), _memory(window, by_reference))
    if not found:
        return
    small, first = windows.find(window, found)
    folder = Path(config.cache_directory()) / "windows"
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / f"{digest(repr(small.calls), *small.contents)[:16]}.json"
    windows.save(small, path, first)
    warnings.warn(
        f"tenon: verify: the plan of {len(calls)} calls differs from the reference, first in "
        f"{first.op}: {first.text}. See it with: tenon replay {path}",
        PlanDiffers,
        stacklevel=2,
    )


def _memory(window: Window, contents: list[bytes]) -> list[torch.Tensor]:
    return Window(window.calls, window.slots, contents, window.numbers).memory()
