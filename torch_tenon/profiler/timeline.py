"""The timeline of a profile: how busy each track was all along, and events of some stretches.

A page cannot hold a million events. Beyond `detail` of them those of stretches spread over the run
are there, and the rest of the time shows how busy it was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from torch_tenon.profiler.log import ACTIVITIES, ON_DEVICE, Events, Subjects

if TYPE_CHECKING:
    from torch_tenon.profiler.collect import Collector

_BINS = 1000
_STRETCHES = 20
_TRACKS = ("device", "waits", "commits", "recording", "builder")
_TRACK_OF = {
    **dict.fromkeys(ON_DEVICE, 0),
    "wait": 1,
    "commit": 2,
    "look_up": 2,
    "reference_run": 2,
    "record": 3,
    "build": 4,
}
_BY_ACTIVITY = np.array([_TRACK_OF[name] for name in ACTIVITIES])


def make(found: Collector, subjects: Subjects, events: Events, detail: int) -> dict[str, Any]:
    """Tracks, names, how busy each track was in each of a thousand pieces of the run (a list of
    shares from 0 to 1, None where nothing is known), and events: track, name, begin and length in
    microseconds, line."""
    begin, length = found.begin, max(found.end - found.begin, 1)
    events = events[(events["end"] > begin) & (events["begin"] < found.end)]
    chosen = _stretches(events, detail)
    names: dict[str, int] = {}
    lines: dict[str, int] = {}
    rows = []
    for e in chosen:
        subject = subjects[e["subject"]].name
        activity = ACTIVITIES[e["activity"]]
        name = subject if activity in ON_DEVICE else f"{activity}: {subject}".removesuffix(": ")
        rows.append(
            [
                int(_BY_ACTIVITY[e["activity"]]),
                names.setdefault(name, len(names)),
                round((int(e["begin"]) - begin) / 1e3, 1),
                round((int(e["end"]) - int(e["begin"])) / 1e3, 1),
                lines.setdefault(subjects[e["line"]].name, len(lines)),
            ]
        )
    return {
        "tracks": list(_TRACKS),
        "names": list(names),
        "lines": list(lines),
        "seconds": length / 1e9,
        "busy": [_busy(events, k, begin, length) for k in range(len(_TRACKS))],
        "events": rows,
        "shown": len(rows),
        "of": found.seen,
    }


def _stretches(events: Events, most: int) -> Events:
    """All events, or those of stretches of time: as many each, spread evenly."""
    if len(events) <= most:
        return events
    each = most // _STRETCHES
    starts = np.linspace(0, len(events) - each, _STRETCHES).astype(int)
    places = np.unique(np.concatenate([np.arange(s, s + each) for s in starts]))
    return events[places]


def _busy(events: Events, track: int, begin: int, length: int) -> list[float]:
    """The share of each piece of the run in which a track was in work, by what is kept of it."""
    chosen = events[_BY_ACTIVITY[events["activity"]] == track]
    edges = np.linspace(0, length, _BINS + 1)
    firsts, lasts = chosen["begin"] - begin, chosen["end"] - begin
    # The work up to each edge, of which the differences are the pieces'.
    done = np.zeros(_BINS + 1)
    if len(chosen):
        order_first, order_last = np.sort(firsts), np.sort(lasts)
        sums_first = np.concatenate([[0], np.cumsum(order_first)])
        sums_last = np.concatenate([[0], np.cumsum(order_last)])
        begun = np.searchsorted(order_first, edges)
        ended = np.searchsorted(order_last, edges)
        done = (sums_last[ended] - sums_first[begun]) + (begun - ended) * edges
    shares = np.clip(np.diff(done) / (length / _BINS), 0, 1)
    return [round(float(s), 3) for s in shares]
