"""What the ops of a run did: counters by op and route, and a report of those that fell back."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from textwrap import shorten
from typing import TYPE_CHECKING, overload

from torch_tenon import _C, config, device

if TYPE_CHECKING:
    from torch_tenon.reports.recording import Recording

_MOST_KERNELS = 20
_OF_PLANS = ("lowered", "kernel")  # the routes whose work is kernels of plans

# By whether the host reaches the memory. Elsewhere a device computes while the host goes on, and
# these are not its times.
_ORDER = {
    True: "most expensive first",
    False: "by the host's time to enqueue them (`tenon profile` has the device's)",
}


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
class Report(Sequence[OpCount]):
    """The counts of a run; `str` of it is a page to read, and `as_json` the same as data.

    It is the sequence of its counts, those with most seconds first: `report()[:5]`. The seconds of
    an op include those of the ops that it called in turn.
    """

    counts: list[OpCount] = field(default_factory=list)
    recording: Recording | None = None
    kernels: list[OpCount] = field(default_factory=list)  # those of plans and launches, if timed

    def __len__(self) -> int:
        return len(self.counts)

    @overload
    def __getitem__(self, index: int) -> OpCount: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[OpCount]: ...
    def __getitem__(self, index: int | slice) -> OpCount | Sequence[OpCount]:
        return sorted(self.counts, key=lambda count: (-count.seconds, -count.calls))[index]

    def as_json(self) -> str:
        """JSON: `counts` and `kernels`, a list of objects each, `recording`, of what windows and
        plans did, and `calls_by_route`."""
        return json.dumps(asdict(self) | {"calls_by_route": self.calls_by_route})

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

    def since(self, before: Report) -> Report:
        """What was counted from another report to this one."""
        recording = self.recording
        if recording is not None and before.recording is not None:
            recording = recording.since(before.recording)
        return Report(
            _difference(self.counts, before.counts),
            recording,
            _difference(self.kernels, before.kernels),
        )

    def __str__(self) -> str:
        if not self.counts:
            return "No op has run on tenon."
        pages = [self._routes(), str(self.recording), self._kernels()]
        return "\n\n".join(page for page in pages if page)

    def _kernels(self) -> str:
        total = sum(k.seconds for k in self.kernels) or 1.0
        most = sorted(self.kernels, key=lambda k: k.seconds, reverse=True)[:_MOST_KERNELS]
        if not most:
            return ""
        lines = [f"Kernels, {_ORDER[device.target().host_memory]}:"]
        lines += [f"{'calls':>10}{'ms':>12}{'share':>8}{'us a call':>12}  ops"]
        lines += [
            f"{k.calls:>10,}{k.seconds * 1e3:>12.2f}{k.seconds / total:>8.1%}"
            f"{k.seconds / k.calls * 1e6:>12.2f}  {shorten(k.op, 80, placeholder=' ...')}"
            for k in most
        ]
        return "\n".join(lines)

    def _routes(self) -> str:
        calls = ", ".join(f"{route} {n:,}" for route, n in self.calls_by_route.items())
        lines = [f"Calls by route: {calls}"]
        fallbacks = self.fallbacks
        if not fallbacks:
            ran = self.recording
            if ran is not None and ran.by_reference and not ran.by_plan:
                return f"{lines[0]}\nThe host computed all that was recorded: no plan ran."
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


def _difference(rows: Sequence[OpCount], before: Sequence[OpCount]) -> list[OpCount]:
    known = {(row.op, row.route): row for row in before}
    found = []
    for row in rows:
        was = known.get((row.op, row.route), OpCount(row.op, row.route, 0, 0.0, 0))
        if row.calls > was.calls:
            seconds, copied = row.seconds - was.seconds, row.bytes_copied - was.bytes_copied
            found.append(OpCount(row.op, row.route, row.calls - was.calls, seconds, copied))
    return found


def report() -> Report:
    """The counts since the start, or since `reset_counters`; `print(torch_tenon.report())`."""
    from torch_tenon.reports.recording import recording  # it needs the compiler

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
    return Report(list(merged.values()), recording(), list(_rows(kernels=True)))


def _route(op: str) -> str:
    from torch_tenon.frontends.eager import route_of  # it needs the compiler

    return route_of(op)


def _rows(kernels: bool = False) -> Iterator[OpCount]:
    """The counters as calls by route, or those of the kernels of plans.

    What is recorded counts when it is recorded if a plan has kernels for it, and else when it runs:
    then a call of its own does the work, whose time is known.
    """
    _C.commit_all()
    records = config.EXECUTE_MODES[_C.execute_mode()] != "reference"
    for route, op, calls, nanoseconds, bytes_copied in _C.counter_values():
        if (route == "plan") != kernels or route.startswith(("at once: ", "line ")):
            continue
        if route in ("recorded", "reference"):
            found = _route(op)
            if (found in _OF_PLANS) != (route == "recorded"):
                continue
            route = found
        elif route == "fallback" and records and _route(op) in _OF_PLANS:
            route = _route(op)  # the first call of its kind runs at once
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
