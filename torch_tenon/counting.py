"""What the ops of a run did: counters by op and route, and a report of those that fell back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from torch_tenon import _C, config


@dataclass(frozen=True, slots=True)
class OpCount:
    """One op by one route. `op` has its overload; `seconds` are summed over the `calls`.

    `bytes_copied` went to the host and back, on a target whose memory the host cannot reach.
    """

    op: str
    route: str
    calls: int
    seconds: float
    bytes_copied: int


@dataclass(frozen=True, slots=True)
class Report:
    """The counts of a run; `str` of it is a page to read.

    The seconds of an op include those of the ops that it called in turn.
    """

    counts: list[OpCount] = field(default_factory=list)

    @property
    def fallbacks(self) -> list[OpCount]:
        """The ops that fell back to the host, most expensive first."""
        fell = [count for count in self.counts if count.route == "fallback"]
        return sorted(fell, key=lambda count: count.seconds, reverse=True)

    @property
    def calls_by_route(self) -> dict[str, int]:
        """How many calls took each route."""
        calls: dict[str, int] = defaultdict(int)
        for count in self.counts:
            calls[count.route] += count.calls
        return dict(sorted(calls.items()))

    def __str__(self) -> str:
        if not self.counts:
            return "No op has run on tenon."
        calls = ", ".join(f"{route} {n:,}" for route, n in self.calls_by_route.items())
        lines = [f"Calls by route: {calls}"]
        fallbacks = self.fallbacks
        if not fallbacks:
            return f"{lines[0]}\nNo op fell back to the host."
        total = sum(count.seconds for count in fallbacks) or 1.0
        lines += [
            "",
            "Ops that fell back to the host, most expensive first:",
            f"{'op':<48}{'calls':>10}{'ms':>12}{'share':>8}{'us a call':>12}{'MiB copied':>12}",
        ]
        lines += [
            f"{count.op:<48}{count.calls:>10,}{count.seconds * 1e3:>12.2f}"
            f"{count.seconds / total:>8.1%}{count.seconds / count.calls * 1e6:>12.2f}"
            f"{count.bytes_copied / 2**20:>12.2f}"
            for count in fallbacks
        ]
        return "\n".join(lines)


def report() -> Report:
    """The counts since the start, or since `reset_counters`; `print(torch_tenon.report())`."""
    merged: dict[tuple[str, str], OpCount] = {}
    for row in _rows():
        known = merged.get((row.op, row.route))
        if known is not None:
            row = OpCount(
                row.op,
                row.route,
                row.calls + known.calls,
                row.seconds + known.seconds,
                row.bytes_copied + known.bytes_copied,
            )
        merged[row.op, row.route] = row
    return Report(list(merged.values()))


def _route(op: str) -> str:
    from torch_tenon.frontends.eager import route_of  # it needs the compiler

    return route_of(op)


def _rows() -> Iterator[OpCount]:
    """The counters as calls by route.

    What is recorded counts when it is recorded if it is lowered, and else when it runs: then a call
    of its own does the work, whose time is known.
    """
    _C.commit_all()
    records = config.EXECUTE_MODES[_C.execute_mode()] != "reference"
    for route, op, calls, nanoseconds, bytes_copied in _C.counter_values():
        if route in ("recorded", "reference"):
            found = _route(op)
            if (found == "lowered") != (route == "recorded"):
                continue
            route = found
        elif route == "fallback" and records and _route(op) == "lowered":
            route = "lowered"  # the first call of its kind runs at once
        yield OpCount(op, route, calls, nanoseconds / 1e9, bytes_copied)


def counters() -> dict[str, int]:
    """Calls by route and op, overloads taken together: `{"fallback::aten::add": 3}`."""
    calls: dict[str, int] = defaultdict(int)
    for row in _rows():
        calls[f"{row.route}::{row.op.partition('.')[0]}"] += row.calls
    return dict(sorted(calls.items()))


def reset_counters() -> None:
    """Sets all counters to zero."""
    _C.reset_counters()
