"""The log of a session of `torch.profiler` as Kineto takes it (csrc/pytorch/execute/kineto.cpp).

A call is an event within its op, on the thread that recorded it, and each kernel that computes it
has an arrow from there. Kineto writes one arrow's end for an event, so what a kernel computes
beside its main op are events without length at its start.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from torch_tenon.api import accelerator
from torch_tenon.reports.profiler.ceilings import Ceilings, ceilings
from torch_tenon.reports.profiler.log import ACTIVITIES, EVENT, ON_DEVICE, Events, Subjects
from torch_tenon.reports.profiler.trace import TRACKS

_NAMES = {
    "commit": "tenon: commits",
    "look_up": "tenon: plan look-ups",
    "reference_run": "tenon: windows by reference",
    "build": "tenon: builder",
}
# Of a device: that of its queue, of copies beside kernels, and from which those of ranges follow.
_QUEUE, _COPIES, _RANGES = 0, 1 << 20, 1
_KINDS = {
    "kernel": "generated kernel",
    "library": "library call",
    "fallback": "fallback",
    "reference": "reference execution",
    "at_once": "at once",
}
_IN_JSON = dict.fromkeys([*range(0x20), ord("\\")], " ") | {ord('"'): "'"}

Fact = tuple[str, str, bool]  # key, value, and whether that is text
_Place = tuple[int, int]  # of a call: its window, and which one there


class Kind(IntEnum):
    """What a row is to Kineto, as kineto.cpp has them."""

    HOST = 0
    CALL = 1  # within its op: the clock that PyTorch reads is another one
    KERNEL = 2
    COPY = 3
    RANGE = 4  # named as its op is


class Row(NamedTuple):
    """One of Kineto's activities; times are nanoseconds since 1970."""

    kind: Kind
    name: str
    begin: int
    end: int
    device: int  # or the process
    track: int
    thread: int
    op: int  # torch.profiler's number of the op or the range; 0: none
    flow: int  # of the arrow that starts or ends there; 0: none
    starts: bool
    facts: list[Fact]


class Track(NamedTuple):
    """A track's number, its place among others, whose it is, and its name."""

    number: int
    place: int
    device: int
    name: str


Make = Callable[[bytes, Mapping[int, int], Callable[[Row], None]], list[Track]]


def begin() -> Make:
    """What makes the trace of a session that begins now: of its log, and the range around each
    range, it gives the rows one by one and then the tracks. Measures the machine, unless that is
    done."""
    most = ceilings()

    def make(log: bytes, outer: Mapping[int, int], take: Callable[[Row], None]) -> list[Track]:
        return _Translation(np.frombuffer(log, EVENT), outer, most, take).tracks

    return make


class _Event(NamedTuple):
    """As `EVENT` has it, of Python's numbers."""

    begin: int
    end: int
    correlation: int
    range: int
    own: int
    amount: int
    subject: int
    line: int
    window: int
    call: int
    thread: int
    activity: int
    device: int
    queue: int


class _Translation:
    def __init__(
        self,
        events: Events,
        outer: Mapping[int, int],
        most: Ceilings,
        take: Callable[[Row], None],
    ) -> None:
        self._take = take
        self._most = most
        self._subjects = Subjects()
        self._names: dict[int, str] = {}
        self._process = os.getpid()
        self._ranges = Ranges(outer)
        self._records: dict[_Place, _Event] = {}
        self._first_flows: dict[_Place, int] = {}
        self._flows = 0
        all_events = list(map(_Event._make, events.tolist()))
        record = ACTIVITIES.index("record")
        for event in all_events:
            if event.activity == record:
                self._records[event.window, event.call] = event
        for event in all_events:
            activity = ACTIVITIES[event.activity]
            if activity in ON_DEVICE:
                self._on_device(event, activity)
            elif activity != "record":
                self._on_host(event, activity)
        for place, event in self._records.items():
            self._call(event, self._first_flows.get(place, 0))
        self.tracks = [
            Track(TRACKS[activity], TRACKS[activity], self._process, name)
            for activity, name in _NAMES.items()
        ]
        beside = bool((events["queue"] > 0).any())
        for device in range(accelerator.device_count()):
            self.tracks.append(Track(_QUEUE, 0, device, "queue 0"))
            if beside:
                self.tracks.append(Track(_COPIES, 1, device, "copies beside kernels"))
            self._add_ranges(device)

    def _add(
        self,
        event: _Event,
        kind: Kind,
        name: str,
        facts: list[Fact],
        *,
        device: int,
        track: int,
        flow: int = 0,
        op: int | None = None,
    ) -> None:
        if event.line:
            facts.append(("line", self._name(event.line), True))
        if event.window:
            facts.append(("window", str(event.window), False))
        if flow:
            facts.append(("correlation", str(flow), False))
        number = event.correlation if op is None else op
        starts = kind == Kind.CALL
        times = event.begin, event.end
        self._take(
            Row(kind, name, *times, device, track, event.thread, number, flow, starts, facts)
        )

    def _name(self, subject: int) -> str:
        """As JSON has it."""
        found = self._names.get(subject)
        if found is None:
            found = self._names[subject] = self._subjects[subject].name.translate(_IN_JSON)
        return found

    def _on_host(self, event: _Event, activity: str) -> None:
        subject = self._subjects[event.subject].name
        name = {
            "look_up": "plan look-up",
            "reference_run": "window by reference",
            "build": "builder: a plan",
        }.get(activity, f"{activity}: {subject}")
        track = TRACKS.get(activity, event.thread)
        facts = [("calls", str(event.amount), False)] if event.amount > 0 else []
        self._add(event, Kind.HOST, name, facts, device=self._process, track=track)

    def _call(self, event: _Event, flow: int, name: str = "tenon::record") -> None:
        """A recorded call; `flow`: of the arrow that starts there; 0: none."""
        facts = [("op", self._name(event.subject), True)]
        device, track = self._process, event.thread
        self._add(event, Kind.CALL, name, facts, device=device, track=track, flow=flow)

    def _next_flow(self) -> int:
        self._flows += 1
        return self._flows

    def _flow_from(self, place: _Place) -> int:
        """An arrow from a call. The first one starts at its event, others at events without
        length."""
        flow = self._next_flow()
        if self._first_flows.setdefault(place, flow) != flow:
            recorded = self._records[place]
            at = min(recorded.begin + 1, recorded.end)
            again = recorded._replace(begin=at, end=at)
            self._call(again, flow, "tenon::record, again")
        return flow

    def _on_device(self, event: _Event, activity: str) -> None:
        subject = self._subjects[event.subject]
        device = max(event.device, 0)
        track = _QUEUE if event.queue == 0 else _COPIES
        computed = (event.call,) if event.call >= 0 else subject.calls
        places = [(event.window, call) for call in computed] if event.window else []
        calls = [place for place in places if place in self._records]
        if calls:
            flow = self._flow_from(calls[0])
            op = self._records[calls[0]].correlation
        else:  # nobody recorded it: it is of the op that ran it
            flow, op = self._next_flow(), event.correlation
            self._call(event._replace(end=event.begin), flow, "tenon::launch")
        kind = Kind.COPY if activity == "copy" else Kind.KERNEL
        nbytes = event.amount if event.amount > 0 else subject.bytes
        nanoseconds = max(event.end - event.begin, 1)
        facts = [
            ("device", str(device), False),
            ("stream", str(track), False),
            ("bytes", str(nbytes), False),
            ("memory bandwidth (GB/s)", repr(nbytes / nanoseconds), False),
        ]
        if kind == Kind.KERNEL:
            facts.append(("kind", _KINDS[activity], True))
            facts.append(("tensors", subject.detail.translate(_IN_JSON), True))
            if subject.operations > 0:
                facts.append(("operations", str(subject.operations), False))
            if self._most.bytes > 0:
                shares = (nbytes / self._most.bytes, subject.operations / self._most.operations)
                facts.append(("% of peak", repr(1e11 * max(shares) / nanoseconds), False))
        self._add(event, kind, subject.name, facts, device=device, track=track, flow=flow, op=op)
        for k, place in enumerate(calls[1:], 1):
            self._part(event, self._records[place], device, track, self._flow_from(place), k)
        within = [self._records[place].range for place in calls] or [event.range]
        for number in within:
            self._ranges.note(device, number, event.begin, event.end)

    def _part(
        self, kernel: _Event, recorded: _Event, device: int, track: int, flow: int, k: int
    ) -> None:
        """What a kernel computes beside its main op."""
        at = min(kernel.begin + k, kernel.end)
        facts = [("op", self._name(recorded.subject), True), ("correlation", str(flow), False)]
        op = recorded.correlation
        row = Row(Kind.HOST, "tenon::part", at, at, device, track, 0, op, flow, False, facts)
        self._take(row)

    def _add_ranges(self, device: int) -> None:
        tracks = 0
        for one in self._ranges.placed(device):
            track = _RANGES + one.track
            self._take(
                Row(Kind.RANGE, "", one.begin, one.end, device, track, 0, one.number, 0, False, [])
            )
            tracks = max(tracks, one.track + 1)
        for k in range(tracks):
            name = "record_function" if k == 0 else f"record_function {k + 1}"
            self.tracks.append(Track(_RANGES + k, _RANGES + k, device, name))


class Placed(NamedTuple):
    """A range on a device, and its track there, from 0 on."""

    number: int
    begin: int
    end: int
    track: int


class Ranges:
    """Ranges of `record_function` on devices: from the first to the last work for what was recorded
    within them. `outer`: the range around a range, by torch.profiler's numbers."""

    def __init__(self, outer: Mapping[int, int]) -> None:
        self._outer = outer
        self._found: dict[tuple[int, int], tuple[int, int]] = {}  # device and range: begin and end

    def note(self, device: int, number: int, begin: int, end: int) -> None:
        """A device worked for a call that was recorded within a range (0: none), and so for those
        around it."""
        for one in (number, *self._around(number)) if number else ():
            first, last = self._found.get((device, one), (begin, end))
            self._found[device, one] = min(first, begin), max(last, end)

    def _around(self, number: int) -> Iterator[int]:
        while (outer := self._outer.get(number)) is not None:
            yield (number := outer)

    def placed(self, device: int) -> list[Placed]:
        """A device's ranges in the order of their begin.

        Those of a track lie within each other as they do in the program, or apart. One that
        overlaps another that is not around it, since a kernel computes for both or kernels change
        places, is on the next track.
        """
        found = [(n, *extent) for (of, n), extent in self._found.items() if of == device]
        # Of those that begin together the outer one comes first.
        found.sort(key=lambda x: (x[1], -x[2], sum(1 for _ in self._around(x[0])), x[0]))
        placed: list[Placed] = []
        open_ranges: list[list[Placed]] = []  # by track: those not over, each within the last
        for number, begin, end in found:
            around = set(self._around(number))
            for track in range(len(open_ranges) + 1):
                if track == len(open_ranges):
                    open_ranges.append([])
                stack = open_ranges[track]
                while stack and stack[-1].end <= begin:
                    stack.pop()
                if not stack or stack[-1].number in around:
                    placed.append(Placed(number, begin, end, track))
                    stack.append(placed[-1])
                    break
        return placed
