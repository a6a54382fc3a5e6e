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

# In the order of `MemoryAction` in csrc/pytorch/device/memory_history.h.
ACTIONS = (
    "alloc",
    "free_requested",
    "free_completed",
    "segment_alloc",
    "segment_free",
    "oom",
)
SMALL_SEGMENT = 2 << 20  # bytes of those that small blocks are cut from


def memory_snapshot(
    mempool_id: tuple[int, int] | None = None, include_traces: bool = True
) -> list[dict[str, Any]]:
    """The segments that the allocator holds on all devices, with their blocks; sizes in bytes.

    Raises ValueError for a pool of memory other than (0, 0), which is the only one.
    `include_traces` changes nothing: segments have no events.
    """
    if mempool_id not in (None, (0, 0)):
        raise ValueError(f"there is one pool of memory, (0, 0), and no {mempool_id}")
    return _state(events=False)["segments"]


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
    return _state(events=True)


def _dump_snapshot(filename: str | os.PathLike[str] = "dump_snapshot.pickle") -> None:
    """Writes a snapshot as a file for PyTorch's viewer. Raises OSError where that fails."""
    with open(filename, "wb") as file:
        pickle.dump(_snapshot(), file)


def _state(events: bool) -> dict[str, Any]:
    """What the viewer reads."""
    segments, frames, traces = _C.memory_state(events)
    return {
        "segments": [
            _segment(device, *segment, frames)
            for device, all_of_device in enumerate(segments)
            for segment in all_of_device
        ],
        "device_traces": [[_event(*event) for event in of_device] for of_device in traces],
        "allocator_settings": {},
        "external_annotations": [],
    }


def _segment(
    device: int,
    address: int,
    size: int,
    blocks: list[tuple[int, int, int]],
    frames: dict[int, list[Any]],
) -> dict[str, Any]:
    allocated = sum(nbytes for _, nbytes, requested in blocks if requested)
    return {
        "device": device,
        "address": address,
        "total_size": size,
        "allocated_size": allocated,
        "active_size": allocated,
        "requested_size": sum(requested for *_, requested in blocks),
        "stream": 0,
        "segment_type": "small" if size <= SMALL_SEGMENT else "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": [
            {
                "address": at,
                "size": nbytes,
                "requested_size": requested,
                "state": "active_allocated" if requested else "inactive",
                "frames": frames.get(at, []) if requested else [],
            }
            for at, nbytes, requested in blocks
        ],
    }


def _event(action: int, address: int, size: int, time: int, frames: list[Any]) -> dict[str, Any]:
    name = ACTIONS[action]
    return {
        "action": name,
        "device_free" if name == "oom" else "addr": address,
        "size": size,
        "stream": 0,
        "time_us": time,
        "frames": frames,
    }
