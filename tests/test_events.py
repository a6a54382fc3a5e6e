"""Streams and events: an event tells when the work before it was done, not when it was recorded."""

import time
from collections.abc import Callable

import pytest
import torch
from against_cpu import assert_same, executing
from turns import MODES, turns


def of_pytorch(device: str) -> torch.Event:
    return torch.Event(device, enable_timing=True)


def of_tenon(device: str) -> torch.Event:
    return torch.tenon.Event(enable_timing=True)


EVENTS = {"torch.Event": of_pytorch, "torch.tenon.Event": of_tenon}


@pytest.fixture(params=MODES, autouse=True)
def mode(request: pytest.FixtureRequest):
    with executing(request.param):
        yield request.param


def heavy(x: torch.Tensor) -> torch.Tensor:
    """Some milliseconds of work in one window."""
    return torch.sort(x @ x / 500, dim=0)[0]


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


@pytest.mark.parametrize("event", EVENTS)
def test_the_time_between_two_events_is_that_of_the_work(event: str) -> None:
    x = torch.rand(500, 500, device="tenon")
    between, beside, later, kept = [], [], [], []
    for _ in turns(5):
        torch.tenon.synchronize()
        begin = time.perf_counter()
        kept.append(heavy(x))
        torch.tenon.synchronize()
        beside.append(time.perf_counter() - begin)
        start, end = EVENTS[event]("tenon"), EVENTS[event]("tenon")
        start.record()
        kept.append(heavy(x))
        end.record()
        end.synchronize()
        assert start.query() and end.query()
        # The work is over: nothing is left to wait for.
        later.append(seconds(torch.tenon.synchronize))
        between.append(start.elapsed_time(end) / 1000)
        assert end.elapsed_time(start) <= 0
    assert max(between) >= min(beside) / 3
    assert min(later) <= max(beside) / 3
    assert_same(kept, [kept[0]] * len(kept), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("event", EVENTS)
def test_an_event_that_says_done_is_done(event: str) -> None:
    x = torch.rand(500, 500, device="tenon")
    beside, later = [], []
    for _ in turns(4):
        start = time.perf_counter()
        y = heavy(x)
        torch.tenon.synchronize()
        beside.append(time.perf_counter() - start)
        z = heavy(x)
        done = EVENTS[event]("tenon")
        done.record()
        while not done.query():
            time.sleep(0.0005)
        later.append(seconds(torch.tenon.synchronize))
        assert_same(y, z, rtol=1e-4, atol=1e-6)
    assert min(later) <= max(beside) / 3


@pytest.mark.parametrize("event", EVENTS)
def test_an_event_without_work_before_it(event: str) -> None:
    for _ in turns(3):
        torch.tenon.synchronize()
        fresh, after = EVENTS[event]("tenon"), EVENTS[event]("tenon")
        assert fresh.query(), "what was never recorded is done"
        fresh.synchronize()
        fresh.record()
        after.record()
        after.synchronize()
        assert fresh.query() and fresh.elapsed_time(after) >= 0


def test_an_event_recorded_again_stands_for_the_later_work() -> None:
    x = torch.rand(500, 500, device="tenon")
    beside, later = [], []
    for _ in turns(4):
        start = time.perf_counter()
        y = heavy(x)
        torch.tenon.synchronize()
        beside.append(time.perf_counter() - start)
        event = torch.tenon.Event()
        event.record()
        z = heavy(x)
        event.record()
        event.synchronize()
        later.append(seconds(torch.tenon.synchronize))
        assert_same(y, z, rtol=1e-4, atol=1e-6)
    assert min(later) <= max(beside) / 3


def test_values_across_two_streams() -> None:
    first, second = torch.tenon.Stream(), torch.Stream("tenon")
    x = torch.rand(40, 40)
    for turn in turns(5):
        with torch.tenon.stream(first):
            a = x.to("tenon") + turn
            b = a @ a
            a.mul_(2)
            made = first.record_event()
        with torch.tenon.stream(second):
            second.wait_event(made)
            c = b * 2 + a
            a.sub_(1)
            taken = second.record_event()
        first.wait_event(taken)
        with torch.tenon.stream(first):
            d = a + c
        torch.tenon.current_stream().wait_stream(first)
        want = x + turn
        twice = want * 2
        assert_same(c, (want @ want) * 2 + twice, rtol=1e-5, atol=1e-4)
        assert_same(d, (twice - 1) + (want @ want) * 2 + twice, rtol=1e-5, atol=1e-4)
        assert_same(a, twice - 1)


def test_streams_that_nobody_orders() -> None:
    """One reads what another wrote: values are those of the program's order all the same."""
    streams = [torch.tenon.Stream() for _ in range(3)]
    x = torch.rand(30)
    for turn in turns(5):
        there, here = x.to("tenon"), x.clone()
        for number in range(9):
            with torch.tenon.stream(streams[number % 3]):
                before = there * 2
                there.add_(before).mul_(0.5)
            here.add_(here * 2).mul_(0.5)
        there[turn] = 1.0
        here[turn] = 1.0
        assert_same(there, here)


@pytest.mark.parametrize(
    "wait",
    [
        lambda stream, event: stream.synchronize(),
        lambda stream, event: event.synchronize(),
        lambda stream, event: torch.tenon.synchronize(),
        lambda stream, event: torch.accelerator.synchronize(),
        lambda stream, event: torch.accelerator.current_stream().wait_stream(stream),
        lambda stream, event: event.wait(torch.accelerator.current_stream()),
        lambda stream, event: torch.accelerator.current_stream().wait_event(event),
    ],
)
def test_every_way_to_wait(wait: Callable[[torch.Stream, torch.Event], None]) -> None:
    stream = torch.tenon.Stream()
    for turn in turns(4):
        x = torch.rand(17)
        with torch.tenon.stream(stream):
            there = x.to("tenon") + turn
            y = there * 3
            there.sub_(1)
            event = stream.record_event()
        wait(stream, event)
        assert_same([y, there, y - there], [w := (x + turn) * 3, v := x + turn - 1, w - v])
        stream.synchronize()
        assert stream.query() and event.query()


def test_a_stream_of_the_other_device() -> None:
    stream = torch.tenon.Stream("tenon:1")
    for turn in turns(4):
        x = torch.rand(9)
        mine = x.to("tenon:0") + turn
        with torch.tenon.stream(stream):
            y = x.to("tenon") * 2
            event = stream.record_event()
        assert y.device == torch.device("tenon:1")
        torch.tenon.current_stream(0).wait_event(event)
        z = mine + y.to("tenon:0")
        event.synchronize()
        assert_same([mine, y, z], [x + turn, x * 2, x + turn + x * 2])
