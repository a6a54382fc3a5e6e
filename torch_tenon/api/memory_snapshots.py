"""Snapshots of the device's memory, in the format of `torch.cuda.memory`.

PyTorch's viewer of memory (`torch/cuda/_memory_viz.py`, pytorch.org/memory_viz) opens them. A
tensor's lines of Python are those that made it. Its memory comes later, when its window runs.
"""

from __future__ import annotations

import os
import pickle
import sys
from typing import Any, Literal

from torch_tenon import _C
from torch_tenon.api.indices import Device, index_of

__all__ = ["memory_snapshot"]


def memory_snapshot(
    mempool_id: tuple[int, int] | None = None, include_traces: bool = True
) -> list[dict[str, Any]]:
    """The segments that the allocator holds on all devices, with their blocks; sizes in bytes.

    Raises ValueError for a pool of memory other than (0, 0), which is the only one.
    `include_traces` changes nothing: segments have no events.
    """
    if mempool_id not in (None, (0, 0)):
        raise ValueError(f"there is one pool of memory, (0, 0), and no {mempool_id}")
    return _C.memory_snapshot(events=False)["segments"]


def _record_memory_history(
    enabled: Literal["state", "all"] | None = "all",
    context: Literal["state", "alloc", "all"] | None = "all",
    stacks: Literal["python", "all"] = "all",
    max_entries: int = sys.maxsize,
    device: Device = None,
    clear_history: bool = False,
) -> None:
    """From now on notes what the allocator does, on all devices; None ends that.

    "state" keeps the lines of Python of what is allocated now, "all" also the last `max_entries`
    events of each device. `context` None leaves out the lines; the other values are alike here:
    an event has the lines that made the tensor. `stacks` changes nothing: there are no C++ frames.
    Raises ValueError for another value.
    """
    for name, value, known in (
        ("enabled", enabled, (None, "state", "all")),
        ("context", context, (None, "state", "alloc", "all")),
        ("stacks", stacks, ("python", "all")),
    ):
        if value not in known:
            raise ValueError(f"{name} is one of {known}, not {value!r}")
    if max_entries < 0:
        raise ValueError(f"max_entries cannot be negative, it is {max_entries}")
    index_of(device)
    _C.set_memory_history(
        on=enabled is not None,
        events=enabled == "all",
        where=enabled is not None and context is not None,
        most=max_entries,
        clear=clear_history,
    )


def _snapshot(device: Device = None) -> dict[str, Any]:
    """Segments, and the events that `_record_memory_history` asked for, of all devices."""
    index_of(device)
    return _C.memory_snapshot(events=True)


def _dump_snapshot(filename: str | os.PathLike[str] = "dump_snapshot.pickle") -> None:
    """Writes a snapshot as a file for PyTorch's viewer. Raises OSError where that fails."""
    with open(filename, "wb") as file:
        pickle.dump(_snapshot(), file)
