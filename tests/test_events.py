"""Streams and events: an event tells when the work before it was done, not when it was recorded."""

import ctypes
import functools
from collections.abc import Callable

import pytest
import torch
from against_cpu import assert_same, executing
from turns import MODES, turns
from waiting import until

import torch_tenon


def of_pytorch(device: str) -> torch.Event:
    return torch.Event(device, enable_timing=True)


def of_tenon(device: str) -> torch.Event:
    return torch.tenon.Event(enable_timing=True)


EVENTS = {"torch.Event": of_pytorch, "torch.tenon.Event": of_tenon}


@pytest.fixture(params=MODES, autouse=True)
def mode(request: pytest.FixtureRequest):
    with executing(request.param):
        yield request.param


class Work:
    """Copies by a kernel that says how many it has made, and how long it took for them."""

    def __init__(self) -> None:
        self._said = (ctypes.c_double * 2)()

    def copy(self, x: torch.Tensor) -> torch.Tensor:
        """Recorded as any op; it takes some milliseconds."""
        return copy_and_say()(x, ctypes.addressof(self._said))

    @property
    def done(self) -> int:
        """How many copies are there."""
        return int(self._said[0])

    @property
    def milliseconds(self) -> float:
        """What all of them took."""
        return self._said[1]


@functools.cache
def copy_and_say() -> Callable[[torch.Tensor, int], torch.Tensor]:
    """A copy that adds to two numbers at an address: 1, and its milliseconds."""
    arguments = ["float32 result", "float32 x", "int64 said", "int64 numel(x)"]
    return torch_tenon.custom_op(
        "tenon_test::copy_and_say(Tensor x, int said) -> Tensor",
        kernels=[torch_tenon.KernelSource("host", _COPY_AND_SAY, "copy_and_say", arguments)],
    )(lambda x, said: x.new_empty(x.shape))


_COPY_AND_SAY = """
#include <stdint.h>
#include <time.h>
static double milliseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return 1e3 * now.tv_sec + 1e-6 * now.tv_nsec;
}
void copy_and_say(float *out, const float *x, int64_t said, int64_t n) {
    volatile double *copies = (volatile double *)said, *took = copies + 1;
    const double begin = milliseconds();
    const struct timespec pause = {0, 3000000};
    nanosleep(&pause, 0);
    for (int64_t i = 0; i < n; ++i) out[i] = x[i];
    *took += milliseconds() - begin;
    *copies += 1;
}
"""


@pytest.mark.parametrize("event", EVENTS)
def test_the_work_is_between_the_times_of_two_events(event: str) -> None:
    x = torch.rand(50)
    for turn in turns(5):
        there = x.to("tenon") + turn
        work = Work()
        start, middle, end = (EVENTS[event]("tenon") for _ in range(3))
        start.record()
        y = work.copy(there)
        middle.record()
        z = work.copy(y * 2)
        end.record()
        end.synchronize()
        assert start.query() and middle.query() and end.query() and work.done == 2
        first, second = start.elapsed_time(middle), middle.elapsed_time(end)
        assert first > 0 and second > 0 and first + second >= work.milliseconds
        assert start.elapsed_time(end) == pytest.approx(first + second)
        assert end.elapsed_time(start) == -start.elapsed_time(end)
        assert_same([y, z], [x + turn, (x + turn) * 2])


@pytest.mark.parametrize("event", EVENTS)
def test_an_event_that_says_done_is_done(event: str) -> None:
    x = torch.rand(50)
    for turn in turns(4):
        there = x.to("tenon") + turn
        work = Work()
        y = work.copy(there)
        done = EVENTS[event]("tenon")
        done.record()
        until(done.query)
        assert work.done == 1
        assert_same(y, x + turn)


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
    x = torch.rand(50)
    for turn in turns(4):
        there = x.to("tenon") + turn
        work = Work()
        event = torch.tenon.Event()
        y = work.copy(there)
        event.record()
        z = work.copy(y + 1)
        event.record()
        event.synchronize()
        assert work.done == 2
        assert_same([y, z], [x + turn, x + turn + 1])


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
