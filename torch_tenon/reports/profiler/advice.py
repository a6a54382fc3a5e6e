"""What to change, in the order of what it would save.

Each rule looks at a profile and names what costs most of its kind, with the Python line. What a
change would save is an estimate, in seconds of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from torch_tenon.compiler.explain import format_bytes

Profile = dict[str, Any]

_LEAST = 0.01  # of the run, that a change has to save
_OFTEN = 20  # times in a run, from which on a line is worth a look
_WORTH_COPYING = 4096  # bytes, below which the wait is what costs
_SMALL = 20e-6  # seconds of computing for a recorded call, under which it is tiny
_MUCH = 0.25  # of the device's memory
_MOST = 12


class Advice(NamedTuple):
    """One change, what it would save in seconds, and the line to change."""

    kind: str
    text: str
    line: str
    saves: float


def advise(profile: Profile) -> list[dict[str, Any]]:
    """The changes that are worth it, best first."""
    found = [one for rule in _RULES for one in rule(profile)]
    found = [one for one in found if one.saves >= _LEAST * profile["seconds"]]
    found = sorted(found, key=lambda a: -a.saves)[:_MOST]
    # An estimate of calls that overlap may be more than there is.
    return [one._replace(saves=min(one.saves, profile["seconds"]))._asdict() for one in found]


def _time(profile: Profile, name: str) -> float:
    return next(float(t["seconds"]) for t in profile["time"] if t["name"] == name)


def _where(line: str) -> str:
    return f"line {line}" if line else "a line that is not known"


def _waits(profile: Profile) -> Iterator[Advice]:
    """A wait ends a window: what it costs beside the waiting is a share of handing windows over,
    and what the windows are shorter by."""
    windows = sum(w["count"] for w in profile["windows"]) or 1
    spent = _time(profile, "handing windows over") + _time(profile, "looking up plans")
    for row in profile["waits"]:
        if row["count"] < _OFTEN:
            continue
        saves = spent * min(row["count"] / windows, 1) + 0.25 * row["seconds"]
        rate = row["count"] / profile["seconds"]
        yield Advice(
            "wait",
            f"{_where(row['line'])} waits {row['count']:,} times, {rate:,.0f} times a second "
            f"({row['what']}): read values less often, or all at once at the end",
            row["line"],
            saves,
        )


def _changing_sizes(profile: Profile) -> Iterator[Advice]:
    rows = [r for r in profile["kernels"] if r["kind"] == "at_once" and r["detail"] == FIRST_CALL]
    count = sum(r["count"] for r in rows)
    windows = [p for p in profile["plans"] if p["runs"] + p["by_reference"] <= 2]
    if count < 2 * _OFTEN or not rows:
        return
    first = max(rows, key=lambda r: r["count"])
    line = first["lines"][0] if first["lines"] else ""
    saves = sum(r["seconds"] for r in rows) + 0.5 * _time(profile, "computing by reference")
    yield Advice(
        "sizes",
        f"sizes that change: {count:,} calls came with sizes that were new, most of them of "
        f"{first['name']} in {_where(line)}, and ran at once; {len(windows):,} windows came once "
        "or twice. Pad to few sizes, or leave the last, shorter batch out",
        line,
        saves,
    )


def _fallbacks(profile: Profile) -> Iterator[Advice]:
    for row in profile["kernels"]:
        at_once = row["kind"] == "at_once" and row["detail"] != FIRST_CALL
        falls_back = row["route"] == "fallback" and row["detail"] != FIRST_CALL
        if not (at_once or falls_back) or row["count"] < _OFTEN:
            continue
        line = row["lines"][0] if row["lines"] else ""
        why = "runs at once and ends the window" if at_once else "falls back to the host's kernel"
        yield Advice(
            "fallback",
            f"{row['name']} in {_where(line)} {why}, {row['count']:,} times: "
            "use ops that fuse in its place (`tenon ops NAME` tells how an op runs)",
            line,
            row["seconds"],
        )


def _copies(profile: Profile) -> Iterator[Advice]:
    for row in profile["copies"]:
        if row["count"] < _OFTEN or row["bytes"] < _WORTH_COPYING * row["count"]:
            continue
        yield Advice(
            "copy",
            f"{_where(row['line'])} copies {format_bytes(row['bytes'])} in {row['count']:,} times "
            f"({row['what']}): keep the tensor on the device",
            row["line"],
            row["seconds"],
        )


def _tiny_calls(profile: Profile) -> Iterator[Advice]:
    calls = sum(r["count"] for r in profile["recorded"])
    computing = _time(profile, "computing by a plan") + _time(profile, "computing by reference")
    if calls < 100 * _OFTEN or computing / calls > _SMALL:
        return
    row = max(profile["recorded"], key=lambda r: r["count"])
    spent = _time(profile, "recording") + 0.5 * _time(profile, "Python and the rest")
    yield Advice(
        "tiny",
        f"tiny ops: {calls:,} calls compute {1e6 * computing / calls:.1f} us each, most of them in "
        f"{_where(row['line'])}: compute more in one call, or compile the function "
        '(`torch.compile(backend="tenon")`)',
        row["line"],
        spent * row["count"] / calls,
    )


def _memory(profile: Profile) -> Iterator[Advice]:
    peak, limit = profile["memory"]["peak"], profile["memory"].get("limit", 0)
    rows = [r for r in profile["recorded"] if r["bytes"]]
    if not limit or peak < _MUCH * limit or not rows:
        return
    row = max(rows, key=lambda r: r["bytes"])
    owners = profile["memory"]["owners"]
    owner = max(owners, key=lambda k: owners[k]) if owners else "the program"
    yield Advice(
        "memory",
        f"the device holds {format_bytes(peak)} of {format_bytes(limit)} at the peak, most of it "
        f"{owner}; {_where(row['line'])} makes most ({row['op']}, {format_bytes(row['most'])} at a "
        "time): keep less, or use smaller batches",
        row["line"],
        profile["seconds"] * peak / limit,
    )


FIRST_CALL = "a first call"  # as csrc/pytorch/record/commit.cpp names it

_RULES: tuple[Callable[[Profile], Iterator[Advice]], ...] = (
    _waits,
    _changing_sizes,
    _fallbacks,
    _copies,
    _tiny_calls,
    _memory,
)
