"""`TENON_EXECUTE=verify`: what happens when a window's plan and its reference disagree."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from torch_tenon import _C, config
from torch_tenon.compiler.cache import digest
from torch_tenon.compiler.wire import window_of
from torch_tenon.testing import window as windows
from torch_tenon.testing.window import Window


class PlanDiffers(UserWarning):
    """A compiled plan gave other numbers than PyTorch's kernels; those of the kernels stay."""


def run_twice(
    window: _C.Window,
    numbers: list[int],
    read: Callable[[int, int], bytes],
    write: Callable[[int, bytes], None],
    run_plan: Callable[[], None],
    run_reference: Callable[[], None],
) -> None:
    """Called by the core with a window: runs it by its plan, and then, on the same inputs, by
    reference; what that leaves stays. `read(slot, nbytes)` and `write(slot, data)` are its memory,
    wherever that is. Raises what either raises."""
    description = window_of(window.structure(here=True), window.number).description
    slots = [_Slot(*facts) for facts in description[2]]

    def contents() -> list[bytes]:
        return [read(k, slot.nbytes) for k, slot in enumerate(slots)]

    # What was never written holds anything: both runs begin with zeros.
    before = [
        bytes(slot.nbytes) if slot.fresh else read(k, slot.nbytes) for k, slot in enumerate(slots)
    ]

    def run_on_inputs(run: Callable[[], None]) -> list[bytes]:
        for k, slot in enumerate(slots):
            if slot.written:
                write(k, before[k])
        run()
        return contents()

    error: Exception | None = None
    by_plan: list[bytes] = []
    try:
        by_plan = run_on_inputs(run_plan)
    except Exception as raised:
        error = raised
    by_reference = run_on_inputs(run_reference)
    if error is not None:
        raise error
    if any(s.alive and a != b for s, a, b in zip(slots, by_plan, by_reference, strict=True)):
        report(description, numbers, before, by_plan, by_reference)


@dataclass
class _Slot:
    """A slot's memory during a run: none where the window made it and let go of it, since the block
    may be another tensor's by now."""

    nbytes: int
    fresh: bool
    alive: bool
    written: bool

    def __post_init__(self) -> None:
        if self.fresh and not self.alive:
            self.nbytes = 0


def report(
    description: tuple[Any, ...],
    numbers: list[int],
    before: list[bytes],
    by_plan: list[bytes],
    by_reference: list[bytes],
) -> None:
    """What to do with a window whose two runs left different bytes.

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
