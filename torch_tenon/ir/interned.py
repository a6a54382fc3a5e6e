"""Objects of which there is one for each key as long as anyone has it, whoever makes them."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

_lock = threading.RLock()  # a collection inside of it may run anything


def _after_fork() -> None:
    # Another thread may have held it, and that thread is not here.
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)


class Interned(Generic[K, V]):
    """The objects of one kind by their keys; it keeps none of them alive."""

    def __init__(self) -> None:
        self._known: weakref.WeakValueDictionary[K, V] = weakref.WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._known)

    def get(self, key: K) -> V | None:
        """The object with that key, None where nobody has one."""
        return self._known.get(key)

    def enter(self, key: K, made: V) -> V:
        """The object with that key: what was entered meanwhile, else `made`."""
        with _lock:  # a dictionary of weak references looks and writes in two steps
            return self._known.setdefault(key, made)
