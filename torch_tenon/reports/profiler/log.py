"""The log of what the device did: its events as NumPy arrays, and what they are of.

Times are nanoseconds since 1970.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from torch_tenon import _C

# As csrc/pytorch/device/profile.h has them: `Activity`, and `ProfileEvent` byte by byte.
ACTIVITIES = (
    "record",
    "commit",
    "look_up",
    "kernel",
    "library",
    "fallback",
    "reference",
    "reference_run",
    "at_once",
    "copy",
    "wait",
    "build",
)
EVENT = np.dtype(
    [
        ("begin", "<i8"),
        ("end", "<i8"),
        ("correlation", "<u8"),
        ("range", "<u8"),
        ("own", "<i8"),
        ("amount", "<i8"),
        ("subject", "<u4"),
        ("line", "<u4"),
        ("window", "<u4"),
        ("call", "<i4"),
        ("thread", "<i4"),
        ("activity", "u1"),
        ("device", "i1"),
        ("queue", "<u2"),  # of the device: 0 is that of kernels, 1 those of copies
    ]
)
Events = npt.NDArray[np.void]

# What the device computes or copies, by a plan, by reference, and op by op.
BY_PLAN = ("kernel", "library", "fallback")
BY_REFERENCE = ("reference", "at_once")
ON_DEVICE = (*BY_PLAN, *BY_REFERENCE, "copy")


@dataclass(frozen=True, slots=True)
class Subject:
    """What events are of: an op, a kernel, a reason, a Python line."""

    name: str
    detail: str = ""  # sizes and dtypes
    calls: tuple[int, ...] = ()  # of the window, that a step of a plan computes
    bytes: int = 0
    operations: int = 0


class Subjects:
    """The subjects by their numbers; 0 is none."""

    def __init__(self) -> None:
        self._known = [Subject("")]

    def __getitem__(self, number: int) -> Subject:
        if number >= len(self._known):
            self._known += [
                Subject(name, detail, tuple(calls), nbytes, operations)
                for name, detail, calls, nbytes, operations in _C.subjects_from(len(self._known))
            ]
        return self._known[number]


def numbers(*activities: str) -> list[int]:
    """The numbers of activities by name."""
    return [ACTIVITIES.index(name) for name in activities]


def of(events: Events, *activities: str) -> Events:
    """The events of these activities."""
    return events[np.isin(events["activity"], numbers(*activities))]


def take(log: _C.ProfileLog, wait: bool = True) -> Events:
    """The events that a log has, in the order of their ends; it has them no more. With `wait` also
    those that an asynchronous device has not come to, which takes as long as it does."""
    return np.frombuffer(log.take(wait), dtype=EVENT)
