"""Collecting the log of a run of any length: sums of everything, and a sample of the events.

The log is emptied a few times a second, so it stays small. The events themselves are kept as long
as there are few; beyond that every second piece of time goes, then every second one of those that
are left, so that what is kept is of the whole run.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from torch_tenon import _C
from torch_tenon.api import accelerator
from torch_tenon.forked import LockOfProcess
from torch_tenon.reports.profiler.log import ACTIVITIES, EVENT, Events, take
from torch_tenon.reports.profiler.memory import Memory

MOST_KEPT = 1 << 20  # events
_MOST_LOGGED = 1 << 20  # between two looks
_PAUSE = 0.1  # seconds between two looks
_MOST_KEYS = 100_000  # sums by activity, subject and line


@dataclass(slots=True)
class Sum:
    """Of the events of one activity, subject and line."""

    count: int = 0
    nanoseconds: int = 0
    own: int = 0  # less what happened within them
    amount: int = 0

    def add(self, count: int, nanoseconds: int, own: int, amount: int) -> None:
        """Adds some."""
        self.count += count
        self.nanoseconds += nanoseconds
        self.own += own
        self.amount += amount


class Piece(NamedTuple):
    """What the log had at one look: what ended since the last one, nanoseconds since 1970."""

    number: int
    since: int
    until: int
    events: Events


@dataclass
class Kept:
    """The events of some stretches of time, each a piece of the log; `every` of them one."""

    most: int = MOST_KEPT
    every: int = 1
    pieces: list[Piece] = field(default_factory=list)
    count: int = 0

    def add(self, piece: Piece) -> None:
        """Takes in a piece, if its turn comes."""
        if piece.number % self.every:
            return
        self.pieces.append(piece)
        self.count += len(piece.events)
        while self.count > self.most and len(self.pieces) > 1:
            self.every *= 2
            self.pieces = [p for p in self.pieces if p.number % self.every == 0]
            self.count = sum(len(p.events) for p in self.pieces)

    def stretches(self) -> list[tuple[int, int]]:
        """The times of which all events are kept: from, to."""
        return [(p.since, p.until) for p in self.pieces]

    def events(self) -> Events:
        """All that is kept, in the order of their begin."""
        pieces = [p.events for p in self.pieces]
        found = np.concatenate(pieces) if pieces else np.empty(0, EVENT)
        return found[np.argsort(found["begin"], kind="stable")]


class Collector:
    """Collects from its making to `stop`, by a thread of its own."""

    def __init__(self, most_kept: int = MOST_KEPT) -> None:
        self.begin = self.end = time.time_ns()
        self.thread = threading.get_native_id()  # whose time is told
        self.sums: dict[tuple[str, int, int], Sum] = defaultdict(Sum)
        self.own: dict[str, int] = defaultdict(int)  # nanoseconds of the thread, by activity
        self.kept = Kept(most_kept)
        self.memory = Memory()
        self.seen = self.lost = 0
        self._pieces = 0
        self._looked = self.begin
        self._log = _C.ProfileLog(_MOST_LOGGED)
        self._over = threading.Event()
        self._lock = LockOfProcess()
        self._worker = threading.Thread(target=self._work, name="tenon profile", daemon=True)
        self._worker.start()

    def stop(self) -> None:
        """Waits for the devices, and takes what is left."""
        for index in range(accelerator.device_count()):
            accelerator.synchronize(index)
        self._log.stop()
        self.end = time.time_ns()
        self._over.set()
        self._worker.join()
        self.take_in(take(self._log), self.end)
        self.lost = self._log.lost

    def seconds(self) -> float:
        """From the begin up to now, or to the end."""
        return ((self.end if self._over.is_set() else time.time_ns()) - self.begin) / 1e9

    def total(self, *activities: str) -> Sum:
        """All events of these activities together."""
        found = Sum()
        with self._lock:
            for (activity, *_), one in self.sums.items():
                if activity in activities:
                    found.add(one.count, one.nanoseconds, one.own, one.amount)
        return found

    def _work(self) -> None:
        while not self._over.wait(_PAUSE):
            self.take_in(take(self._log, wait=False), time.time_ns())
            self.memory.look(self.begin)

    def take_in(self, events: Events, until: int) -> None:
        """Adds the events of a look to the sums, and keeps them if it is their turn; `until` is
        when that was."""
        if len(events) == 0:
            return
        self.kept.add(Piece(self._pieces, self._looked, until, events))
        self._pieces += 1
        self._looked = until
        self.seen += len(events)
        keys = np.stack([events[k].astype(np.int64) for k in ("activity", "subject", "line")], 1)
        unique, places = np.unique(keys, axis=0, return_inverse=True)
        columns = [np.ones(len(events)), events["end"] - events["begin"]]
        columns += [events["own"], events["amount"]]
        sums = [np.bincount(places.ravel(), c, len(unique)).astype(np.int64) for c in columns]
        with self._lock:
            for key, *values in zip(unique.tolist(), *(s.tolist() for s in sums), strict=True):
                activity, subject, line = key
                name = ACTIVITIES[activity]
                known = (name, subject, line) in self.sums
                if not known and len(self.sums) >= _MOST_KEYS:
                    subject = line = 0
                self.sums[name, subject, line].add(*values)
            mine = events[events["thread"] == self.thread]
            by = np.bincount(mine["activity"], mine["own"], len(ACTIVITIES))
            for name, nanoseconds in zip(ACTIVITIES, by.tolist(), strict=True):
                self.own[name] += int(nanoseconds)
