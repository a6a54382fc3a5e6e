"""The page of a profile: one HTML file that needs nothing else, of a bounded size."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch_tenon.reports import pages
from torch_tenon.reports.profiler import timeline

Profile = dict[str, Any]

MOST_BYTES = 2_600_000  # of the data; what is left of 3 MB is for the page itself
COMPARED = ("script", "seconds", "time", "kernels")  # with another run
_OF_A_KERNEL = ("name", "detail", "seconds")


def render(profile: Profile, before: Profile | None = None) -> str:
    """The page of a profile, beside that of another run where `before` is given.

    A profile of more than MOST_BYTES is thinned, and the page says what it leaves out; the JSON
    beside it has all.
    """
    compared = None if before is None else _compared(before)
    room = MOST_BYTES - len(pages.as_json(compared))
    return pages.render(
        "Profile: " + " ".join(profile["script"]),
        Path(__file__).parent,
        {"profile": _thinned(profile, room), "before": compared},
        ("timeline.js", "page.js"),
    )


def _compared(before: Profile) -> Profile:
    found = {name: before[name] for name in COMPARED}
    found["kernels"] = [{k: row[k] for k in _OF_A_KERNEL} for row in before["kernels"]]
    return found


def _thinned(profile: Profile, room: int) -> Profile:
    """The profile, or as large a part of it as its JSON has room for; `left_out` says what."""
    made, shares = dict(profile), dict.fromkeys(_PARTS, 1.0)
    for what, part in _PARTS.items():
        for share in _SHARES:
            if len(pages.as_json(made)) <= room:
                break
            made |= part(profile, share)
            shares[what] = share
    left_out = [f"{what} ({share:.0%} are here)" for what, share in shares.items() if share < 1]
    return made | {"left_out": left_out} if left_out else made


def _events(profile: Profile, share: float) -> Profile:
    found = profile["timeline"]
    return {"timeline": timeline.thin(found, int(share * len(found["events"])))}


def _code(profile: Profile, share: float) -> Profile:
    kernels = profile["kernels"]
    most = int(share * sum("source" in row for row in kernels))
    return {"kernels": [r if k < most else r | {"source": ""} for k, r in enumerate(kernels)]}


def _plans(profile: Profile, share: float) -> Profile:
    return {"plans": profile["plans"][: int(share * len(profile["plans"]))]}


def _rows(profile: Profile, share: float) -> Profile:
    names = ("waits", "at_once", "copies", "recorded")
    kernels = [r | {"source": ""} for r in profile["kernels"]]
    rows = {name: profile[name] for name in names} | {"kernels": kernels}
    return {name: found[: int(share * len(found))] for name, found in rows.items()}


# In the order in which they go; each keeps what took most time.
_PARTS: dict[str, Callable[[Profile, float], Profile]] = {
    "events of the timeline": _events,
    "the code of kernels": _code,
    "plans": _plans,
    "rows of tables": _rows,
}
_SHARES = (0.5, 0.25, 0.12, 0.06)
