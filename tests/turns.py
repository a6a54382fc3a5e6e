"""Doing the same again, until calls are recorded and plans run them."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from waiting import TIMEOUT, start_of, until

from torch_tenon.builder.counts import plan_counts

MODES = ("reference", "auto", "compiled")  # of TENON_EXECUTE


def settle() -> None:
    """Runs what is recorded, and waits for the plans that were asked for."""
    for index in range(torch.tenon.device_count()):
        torch.tenon.synchronize(index)
    while plan_counts()["waiting"]:
        time.sleep(0.002)


def turns(count: int = 4) -> Iterator[int]:
    """Counts to `count`; before each turn but the first, plans for what came before are ready.

    The first turn runs at once, the next ones are recorded, the last ones run by plans.
    """
    for turn in range(count):
        yield turn
        settle()


def in_thread(work: Callable[[], Any]) -> Any:
    """What `work` gives on a thread of its own; raises what it raises, and when it hangs.

    The system's thread has ended by then, and what the core has of it; `join` does not wait for it.
    """
    done: list[tuple[Any, BaseException | None]] = []
    start = b""

    def body() -> None:
        nonlocal start
        start = start_of(threading.get_native_id())
        try:
            done.append((work(), None))
        except BaseException as error:
            done.append((None, error))

    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    thread.join(TIMEOUT)
    assert done, "the thread does not come back"
    until(lambda: not start or start_of(thread.native_id) != start)
    value, error = done[0]
    if error is not None:
        raise error
    return value
