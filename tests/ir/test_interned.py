"""One object for each key, whatever threads enter it."""

from __future__ import annotations

import contextlib
import gc
import threading

from torch_tenon.ir.interned import Interned


class Thing:
    pass


class Key:
    """Equal to the others; its second hash, which is that of the entry, waits for other threads."""

    def __init__(self, both_are_about_to_enter: threading.Barrier) -> None:
        self.barrier, self.hashes = both_are_about_to_enter, 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key)

    def __hash__(self) -> int:
        self.hashes += 1
        if self.hashes == 2:
            with contextlib.suppress(threading.BrokenBarrierError):
                self.barrier.wait(timeout=1)
        return 0


def test_two_threads_that_find_nothing_get_one_object() -> None:
    table: Interned[Key, Thing] = Interned()
    barrier = threading.Barrier(2)
    got: list[Thing] = []
    threads = [
        threading.Thread(target=lambda: got.append(table.enter(Key(barrier), Thing())))
        for _ in range(2)
    ]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(got) == 2 and got[0] is got[1]


def test_nothing_is_kept_alive() -> None:
    table: Interned[int, Thing] = Interned()
    thing = table.enter(1, Thing())
    assert table.get(1) is thing and table.get(2) is None
    del thing
    gc.collect()
    assert table.get(1) is None
