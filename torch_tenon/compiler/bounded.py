"""What a process keeps in memory for later: so much of it and no more.

Each cache has a bound, lets go of what was used least recently, and counts; `counts` adds up the
caches of one name, of which there may be many (the plans by size of each compiled graph).
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import OrderedDict, defaultdict
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class CacheCounts:
    """A cache, or several of one name: entries, the most that each holds, and what was asked."""

    name: str
    entries: int
    bound: int
    hits: int
    misses: int
    evicted: int

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.entries:,} (at most {self.bound:,} each), {self.hits:,} hits, "
            f"{self.misses:,} misses, {self.evicted:,} evicted"
        )


class _Tally:
    """The counts of all caches of a name, those that are gone too."""

    def __init__(self) -> None:
        self.bound = self.hits = self.misses = self.evicted = 0
        self.caches: weakref.WeakSet[BoundedCache[object, object]] = weakref.WeakSet()


_tallies: dict[str, _Tally] = defaultdict(_Tally)
_lock = threading.RLock()  # a collection inside of it, or a signal's handler, may run anything


def _after_fork() -> None:
    # Another thread may have held it, and that thread is not here.
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)


class BoundedCache(Generic[K, V]):
    """A dictionary of at most `bound` entries, for use from any thread. Values are not None."""

    def __init__(self, name: str, bound: int) -> None:
        self.bound = bound
        self._entries: OrderedDict[K, V] = OrderedDict()
        with _lock:
            self._tally = _tallies[name]
            self._tally.bound = bound
            self._tally.caches.add(self)  # type: ignore[arg-type]

    def get(self, key: K) -> V | None:
        """What is kept for the key, None where there is nothing; it counts as used now."""
        with _lock:
            found = self._entries.get(key)
            if found is None:
                self._tally.misses += 1
            else:
                self._tally.hits += 1
                self._entries.move_to_end(key)
            return found

    def put(self, key: K, value: V) -> None:
        """Keeps a value, and lets go of the one that was used least recently beyond the bound."""
        evicted = None  # ends outside of the lock: what it holds may be freed by any code
        with _lock:
            self._entries[key] = value
            self._entries.move_to_end(key)
            if len(self._entries) > self.bound:
                evicted = self._entries.popitem(last=False)
                self._tally.evicted += 1
        del evicted

    def items(self) -> list[tuple[K, V]]:
        """All entries, the least recently used first; they do not count as used."""
        with _lock:
            return list(self._entries.items())

    def __len__(self) -> int:
        return len(self._entries)


def counts() -> list[CacheCounts]:
    """The caches of this process by name."""
    with _lock:
        return [
            CacheCounts(name, sum(map(len, t.caches)), t.bound, t.hits, t.misses, t.evicted)
            for name, t in sorted(_tallies.items())
        ]
