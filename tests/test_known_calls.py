"""What is known of an op's calls: so many and no more, and those go that were used longest ago."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from turns import in_thread, turns
from waiting import TIMEOUT

import torch_tenon
from torch_tenon import _C

MOST = 16


def shift(x: Tensor, count: int) -> Tensor:
    return x + count


@pytest.fixture(scope="module", autouse=True)
def library() -> Iterator[torch.library.Library]:
    """An op each of whose calls has a key of its own, which no rule of sizes covers."""
    library = torch.library.Library("tenon_known", "DEF")
    library.define("shift(Tensor x, int count) -> Tensor")
    library.impl("shift", shift, "CPU")
    library.impl("shift", lambda x, count: torch.empty_like(x), "Meta")
    _C.record_op("tenon_known::shift", "")
    yield library
    library._destroy()


@pytest.fixture(autouse=True)
def few() -> Iterator[None]:
    before = _C.known_call_counts()[1]
    _C.set_most_known_calls(MOST)
    yield
    _C.set_most_known_calls(before)


def learned() -> int:
    return _C.known_call_counts()[2]


def shifts(x: Tensor, counts: range) -> list[Tensor]:
    return [torch.ops.tenon_known.shift(x, k) for k in counts]


def assert_right(found: list[Tensor], x: Tensor, counts: range) -> None:
    for k, y in zip(counts, found, strict=True):
        torch.testing.assert_close(y.cpu(), x + k)


def test_beyond_the_bound_the_oldest_go_and_new_ones_are_recorded() -> None:
    x = torch.randn(5)
    there = x.to("tenon")
    shifts(there, range(3 * MOST))
    newest = range(3 * MOST - 4, 3 * MOST)
    before = learned()
    found = shifts(there, newest)
    assert learned() == before, "the newest are known"
    shifts(there, range(2))
    assert learned() == before + 2, "the oldest are not"
    assert_right(found, x, newest)


def test_what_is_used_all_the_time_stays() -> None:
    x = torch.randn(6)
    there = x.to("tenon")
    shifts(there, range(1))
    before = learned()
    for k in range(1, 4 * MOST):
        shifts(there, range(k, k + 1))
        shifts(there, range(1))
    assert learned() == before + 4 * MOST - 1


def test_windows_and_plans_keep_what_they_use() -> None:
    counts = range(MOST)
    for turn in turns(5):
        x = torch.randn(7) + turn
        there = x.to("tenon")
        found = shifts(there, counts)
        # They are let go of while the window that has them is open.
        shifts(there, range(100 * (turn + 1), 100 * (turn + 1) + 3 * MOST))
        assert_right(found, x, counts)


def test_threads_find_and_forget() -> None:
    def work(first: int) -> None:
        x = torch.randn(3)
        there = x.to("tenon")
        for start in range(first, first + 200, 5):
            counts = range(start, start + 5)
            for _ in range(2):
                assert_right(shifts(there, counts), x, counts)

    import threading

    errors: list[BaseException] = []

    def guarded(first: int) -> None:
        try:
            work(first)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(1000 + 50 * k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)
        assert not thread.is_alive()
    assert not errors
    in_thread(lambda: work(5000))


def test_the_report_counts_them() -> None:
    shifts(torch.randn(4).to("tenon"), range(2 * MOST))
    (counts,) = (c for c in torch_tenon.report().recording.caches if c.name == "calls by op")
    assert counts.bound == MOST and counts.evicted >= MOST
    assert counts.entries == counts.misses - counts.evicted
