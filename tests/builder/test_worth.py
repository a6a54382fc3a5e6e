"""Plans are asked for where they pay: for windows that have taken a while without one."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator

import pytest
import torch
from against_cpu import executing
from needs import host_memory

from torch_tenon import _C
from torch_tenon.builder.counts import plan_counts

CALLS = 240  # of a window: its plan takes seconds to make, as far as anybody knows


@pytest.fixture(autouse=True)
def worthwhile(no_plan_in_work: None) -> Iterator[None]:
    _C.set_plan_all(False)
    yield
    _C.set_plan_all(True)


def run_window(size: int, calls: int = CALLS) -> None:
    draw = random.Random(0)  # a loop of a few calls would be several windows
    x = torch.ones(size, device="tenon")
    for _ in range(calls // 2):
        x = (x * 2 if draw.random() < 0.6 else x - 1).relu()
    _C.commit_all()


def asked() -> set[int]:
    """The windows that a plan was asked for."""
    return {w.number for w in _C.window_runs() if w.state}


def test_a_window_that_took_next_to_nothing_gets_none() -> None:
    for calls in range(CALLS, CALLS + 100, 2):
        run_window(11, calls)  # its first calls run at once
        structures, before = plan_counts()["structures"], asked()
        known = {w.number for w in _C.window_runs()}
        for _ in range(3):
            run_window(11, calls)
        assert plan_counts()["structures"] == structures + 1
        (window,) = (w for w in _C.window_runs() if w.number not in known)
        if window.saving < window.price:  # else it was held up, and took more than nothing
            assert asked() <= before
            return
    raise AssertionError("each was held up")


def test_a_window_gets_one_once_its_runs_have_taken_a_while() -> None:
    before, deadline = asked(), time.monotonic() + 120
    while asked() <= before and time.monotonic() < deadline:
        run_window(1013)
    assert len(asked() - before) == 1


def test_sizes_that_come_often_get_one_of_their_own_once_it_pays() -> None:
    """What runs with these sizes cost before, as a part of those for any sizes, counts as well."""
    known, draw = {w.number for w in _C.window_runs()}, random.Random(5)
    for size in [*draw.sample(range(100, 500), 20), *[611] * 30]:
        run_window(size, 30)
    *any_sizes, of_its_own = sorted(
        (w for w in _C.window_runs() if w.number not in known), key=lambda w: w.number
    )
    assert max(w.sizes for w in any_sizes) > 15 and of_its_own.sizes == 0
    assert of_its_own.saving > 0
    assert (of_its_own.number in asked()) <= (of_its_own.saving >= of_its_own.price / 2)


@pytest.mark.slow
@host_memory
@pytest.mark.parametrize("keeps", [True, False])
def test_calls_alone_are_made_without_a_plan(keeps: bool) -> None:
    """A plan that makes a window's calls as they are only adds to what they take. One that leaves
    out what nobody reads runs."""
    a = torch.randn(3, 5, 5 + keeps, device="tenon")
    before, deadline = {w.number for w in _C.window_runs()}, time.monotonic() + 120

    def runs() -> tuple[int, int]:
        result = torch.linalg.qr(a)
        if not keeps:
            del result
        _C.commit_all()
        new = [w for w in _C.window_runs() if w.number not in before and "qr" in w.name]
        ready = [w for w in new if w.state == 2]
        return sum(w.by_plan for w in ready), len(ready)

    _C.set_plan_all(True)
    while runs()[1] == 0 and time.monotonic() < deadline:
        time.sleep(0.01)
    before_it, _ = runs()
    assert runs() == (before_it + (not keeps), 1)
    with executing("compiled"):
        assert runs() == (before_it + (not keeps) + 1, 1)


def runs_by_plan_once_compared(step: Callable[[], object]) -> int:
    """How many of 20 steps run by a plan, once it was found out whether that is faster: a step is
    one window, and has run by its plan for a while."""
    known, deadline = {w.number for w in _C.window_runs()}, time.monotonic() + 120

    def after(steps: int) -> int:
        for _ in range(steps):
            step()
        return sum(w.by_plan for w in _C.window_runs() if w.number not in known)

    while after(1) < 16:
        assert time.monotonic() < deadline, "no plan came"
    took = -time.perf_counter()
    after(20)
    took += time.perf_counter()
    before = after(int(40 * max(1, 0.05 / took)))
    return after(20) - before


@pytest.mark.slow
@host_memory
def test_a_plan_that_takes_longer_than_its_calls_is_left() -> None:
    # Plans compute it a number at a time, which takes some twenty times as long as the library.
    x = torch.rand(200, 100, device="tenon") + 0.3

    def step() -> None:
        torch.special.airy_ai(x)[0, 0].item()

    assert runs_by_plan_once_compared(step) == 0


@pytest.mark.slow
@host_memory
def test_a_plan_that_is_faster_stays() -> None:
    x = torch.randn(300, 1000, device="tenon")

    def step() -> None:
        y = x
        for k in range(20):
            y = (y * 0.99 + k).abs()
        y[0, 0].item()

    assert runs_by_plan_once_compared(step) == 20
