"""A Chrome trace of a log, for https://ui.perfetto.dev and chrome://tracing."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from torch_tenon.reports.profiler.log import ACTIVITIES, ON_DEVICE, Events, Subjects, numbers, of

# The tracks of what is neither a thread's nor a device's.
_FIRST = 1 << 29
TRACKS = {"commit": _FIRST, "look_up": _FIRST + 1, "reference_run": _FIRST + 2, "build": _FIRST + 3}


class Range(NamedTuple):
    """A range that the program named, in nanoseconds since 1970."""

    name: str
    begin: int
    end: int
    thread: int


def on_device(events: Events) -> npt.NDArray[np.bool_]:
    """Which of the events are of the device's own time."""
    return np.isin(events["activity"], numbers(*ON_DEVICE))


def write(
    path: str | os.PathLike[str],
    events: Events,
    ranges: Sequence[Range],
    modes: Sequence[str] = ("interval",),
) -> None:
    """Writes a trace, compressed where the path ends in .gz. Raises OSError where it cannot be, and
    leaves no part of it."""
    where = Path(path)
    try:
        with gzip.open(where, "wt") if where.suffix == ".gz" else where.open("w") as file:
            _write(file, events, ranges, modes)
    except OSError as error:
        if where.is_file():
            where.unlink()
        raise OSError(error.errno, error.strerror, str(where)) from None


def _write(file: IO[str], events: Events, ranges: Sequence[Range], modes: Sequence[str]) -> None:
    file.write('{"schemaVersion": 1, "displayTimeUnit": "ms", "traceEvents": [\n')
    rows: Iterator[dict[str, Any]] = _rows(events, ranges, modes)
    for k, row in enumerate(rows):
        file.write((",\n" if k else "") + json.dumps(row))
    file.write("\n]}\n")


def _rows(
    events: Events, ranges: Sequence[Range], modes: Sequence[str]
) -> Iterator[dict[str, Any]]:
    yield from _names(events)
    subjects = Subjects()
    pid = os.getpid()
    records = {(e["window"], e["call"]): e for e in of(events, "record")}
    flow = 0
    for event in events:
        activity = ACTIVITIES[event["activity"]]
        device = activity in ON_DEVICE
        row = _row(event, activity, subjects, pid)
        if device and "event" in modes:
            yield {**row, "ph": "i", "s": "t", "ts": _microseconds(event["end"]), "dur": 0}
        if device and "interval" not in modes:
            continue
        yield row
        if not device:
            continue
        calls = [event["call"]] if event["call"] >= 0 else subjects[event["subject"]].calls
        for call in calls:
            recorded = records.get((event["window"], call))
            if recorded is None:
                continue
            flow += 1
            arrow = {"cat": "ac2g", "name": "ac2g", "id": flow}
            start = {"pid": pid, "tid": int(recorded["thread"])}
            yield {**arrow, **start, "ph": "s", "ts": _microseconds(recorded["begin"])}
            end = {"pid": row["pid"], "tid": row["tid"], "bp": "e"}
            yield {**arrow, **end, "ph": "f", "ts": row["ts"]}
    for one in ranges:
        yield {
            "ph": "X",
            "cat": "user_annotation",
            "name": one.name,
            "pid": pid,
            "tid": one.thread,
            "ts": _microseconds(one.begin),
            "dur": (one.end - one.begin) / 1e3,
        }


def _row(event: Any, activity: str, subjects: Subjects, pid: int) -> dict[str, Any]:
    subject = subjects[event["subject"]]
    device = activity in ON_DEVICE
    track = TRACKS.get(activity, int(event["thread"]))
    row: dict[str, Any] = {
        "ph": "X",
        "cat": "kernel" if device else "privateuse1_runtime",
        "name": subject.name if device else f"{activity}: {subject.name}".removesuffix(": "),
        "pid": max(int(event["device"]), 0) if device else pid,
        "tid": int(event["queue"]) if device else track,
        "ts": _microseconds(event["begin"]),
        "dur": (int(event["end"]) - int(event["begin"])) / 1e3,
    }
    facts = {
        "activity": activity,
        "tensors": subject.detail,
        "bytes": subject.bytes or int(event["amount"]),
        "operations": subject.operations,
        "line": subjects[event["line"]].name,
        "stream": int(event["queue"]) if device else None,
    }
    row["args"] = {k: v for k, v in facts.items() if v not in ("", None)}
    return row


def _names(events: Events) -> Iterator[dict[str, Any]]:
    pid = os.getpid()
    yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": "python"}}
    for activity, track in TRACKS.items():
        name = "builder" if activity == "build" else activity.replace("_", " ")
        args = {"name": f"tenon: {name}"}
        yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": track, "args": args}
    for device in np.unique(np.maximum(events["device"], 0)):
        args = {"name": f"tenon:{device}"}
        yield {"ph": "M", "name": "process_name", "pid": int(device), "args": args}


def _microseconds(nanoseconds: int) -> float:
    return int(nanoseconds) / 1e3
