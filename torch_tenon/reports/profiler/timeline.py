"""The timeline of a profile: how busy each track was all along, and events of some stretches.

A page cannot hold a million events. Beyond `detail` of them those of stretches spread over the run
are there, and the rest of the time shows how busy it was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from torch_tenon.reports.profiler.log import ACTIVITIES, ON_DEVICE, Events, Subjects

if TYPE_CHECKING:
    from torch_tenon.reports.profiler.collect import Collector

_BINS = 1000
_STRETCHES = 20
_TRACKS = ("device", "waits", "commits", "recording", "builder", "copies beside kernels")
_TRACK_OF = {
    **dict.fromkeys(ON_DEVICE, 0),
    "wait": 1,
    "commit": 2,
    "look_up": 2,
    "reference_run": 2,
    "record": 3,
    "build": 4,
}
_COPIES = len(_TRACKS) - 1  # it is there where a device has queues for them
_Times = npt.NDArray[np.float64]  # nanoseconds since the begin
_BY_ACTIVITY = np.array([_TRACK_OF[name] for name in ACTIVITIES])


def _tracks(events: Events) -> npt.NDArray[np.intp]:
    return np.where(events["queue"] > 0, _COPIES, _BY_ACTIVITY[events["activity"]])


def make(found: Collector, subjects: Subjects, events: Events, detail: int) -> dict[str, Any]:
    """Tracks, names, how busy each track was in each of a thousand pieces of the run (a list of
    shares from 0 to 1, None where nothing is kept), and events: track, name, begin and length in
    microseconds, line."""
    begin, length = found.begin, max(found.end - found.begin, 1)
    edges = np.linspace(0, length, _BINS + 1)
    stretches = np.array(found.kept.stretches(), np.int64).reshape(-1, 2) - begin
    known = _time_within(stretches[:, 0], stretches[:, 1], edges)
    events = events[(events["end"] > begin) & (events["begin"] < found.end)]
    chosen = events[_stretches(len(events), detail)]
    tracks = _tracks(chosen)
    names: dict[str, int] = {}
    lines: dict[str, int] = {}
    rows = []
    for e, track in zip(chosen, tracks, strict=True):
        subject = subjects[e["subject"]].name
        activity = ACTIVITIES[e["activity"]]
        name = subject if activity in ON_DEVICE else f"{activity}: {subject}".removesuffix(": ")
        rows.append(
            [
                int(track),
                names.setdefault(name, len(names)),
                round((int(e["begin"]) - begin) / 1e3, 1),
                round((int(e["end"]) - int(e["begin"])) / 1e3, 1),
                lines.setdefault(subjects[e["line"]].name, len(lines)),
            ]
        )
    tracks_there = _TRACKS if (events["queue"] > 0).any() else _TRACKS[:_COPIES]
    return {
        "tracks": list(tracks_there),
        "names": list(names),
        "lines": list(lines),
        "seconds": length / 1e9,
        "busy": [_busy(events, k, begin, edges, known) for k in range(len(tracks_there))],
        "events": rows,
        "shown": len(rows),
        "of": found.seen,
    }


def thin(made: dict[str, Any], most: int) -> dict[str, Any]:
    """A timeline of at most so many of its events."""
    chosen = [made["events"][k] for k in _stretches(len(made["events"]), most).tolist()]
    names: dict[str, int] = {}
    lines: dict[str, int] = {}
    rows = [
        [
            track,
            names.setdefault(made["names"][name], len(names)),
            begin,
            length,
            lines.setdefault(made["lines"][line], len(lines)),
        ]
        for track, name, begin, length, line in chosen
    ]
    return made | {"names": list(names), "lines": list(lines), "events": rows, "shown": len(rows)}


def _stretches(count: int, most: int) -> npt.NDArray[np.intp]:
    """The places of all events, or of those of stretches of time: as many each, spread evenly."""
    if count <= most:
        return np.arange(count)
    each = most // _STRETCHES
    starts = np.linspace(0, count - each, _STRETCHES).astype(int)
    return np.unique(np.concatenate([np.arange(s, s + each) for s in starts]))


def _busy(events: Events, track: int, begin: int, edges: _Times, known: _Times) -> list[Any]:
    """The share of each piece of the run in which a track was in work, of the time of which all
    events are kept (`known`, by piece)."""
    chosen = events[_tracks(events) == track]
    work = _time_within(chosen["begin"] - begin, chosen["end"] - begin, edges)
    return [
        round(min(float(w / k), 1.0), 3) if k > 0 else None
        for w, k in zip(work, known, strict=True)
    ]


def _time_within(firsts: Any, lasts: Any, edges: _Times) -> _Times:
    """How much of stretches of time lies between each edge and the next."""
    firsts, lasts = np.sort(firsts), np.sort(lasts)
    begun, ended = np.searchsorted(firsts, edges), np.searchsorted(lasts, edges)
    # Up to each edge, of which the differences are what is asked for.
    sums_first = np.concatenate([[0.0], np.cumsum(firsts)])
    sums_last = np.concatenate([[0.0], np.cumsum(lasts)])
    done = sums_last[ended] - sums_first[begun] + (begun - ended) * edges
    return np.maximum(np.diff(done), 0.0)
