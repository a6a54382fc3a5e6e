"""Threads that use the device at the same time, each its own tensors or the same ones."""

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import Queue

import pytest
import torch
from against_cpu import assert_same, executing
from turns import MODES, in_thread, settle, turns
from waiting import TIMEOUT, Gate, until

from torch_tenon import _C
from torch_tenon.builder.counts import plan_counts

COUNT = 4


@pytest.fixture(params=MODES, autouse=True)
def mode(request: pytest.FixtureRequest):
    with executing(request.param):
        yield request.param


def together(work: Callable[[int], object], count: int = COUNT) -> list:
    """Runs `work(number)` on threads that start at the same time; what they give, by number."""
    barrier = threading.Barrier(count)

    def body(number: int) -> object:
        barrier.wait(TIMEOUT)
        return work(number)

    with ThreadPoolExecutor(count) as pool:
        return [future.result(TIMEOUT) for future in [pool.submit(body, n) for n in range(count)]]


def train(number: int, device: str, steps: int = 12) -> list[torch.Tensor]:
    """A training loop of one's own: every thread's has the same calls and other numbers."""
    generator = torch.Generator().manual_seed(number)
    weight, bias, x = (torch.rand(n, 5, generator=generator) for n in (7, 1, 7))
    weight, bias, x = (t.to(device) for t in (weight, bias, x))
    weight.requires_grad_()
    bias.requires_grad_()
    losses = []
    for _ in range(steps):
        loss = ((weight * x + bias).tanh() - 0.1 * number).square().mean()
        weight.grad, bias.grad = torch.autograd.grad(loss, (weight, bias))
        with torch.no_grad():
            weight -= 0.1 * weight.grad
            bias.sub_(bias.grad, alpha=0.1)
        losses.append(loss.item())
    return [weight.detach().cpu(), bias.detach().cpu(), torch.tensor(losses)]


def test_each_its_own_loop() -> None:
    want = [train(number, "cpu") for number in range(COUNT)]
    for _ in turns(3):
        assert_same(together(lambda number: train(number, "tenon")), want, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_plans_serve_every_thread(mode: str) -> None:
    for _ in turns(3):
        together(lambda number: train(number, "tenon"))
    if plan_counts()["ready"] == 0:
        pytest.skip("nothing was planned")
    before = plan_counts()["hits"]
    in_thread(lambda: train(1, "tenon"))
    alone = plan_counts()["hits"] - before
    together(lambda number: train(number, "tenon"))
    if mode != "reference":
        assert plan_counts()["hits"] - before - alone >= COUNT * alone // 2 > 0


def test_they_share_what_nobody_writes() -> None:
    weight, bias = torch.rand(6, 6), torch.rand(6)
    shared = weight.to("tenon") * 2, bias.to("tenon") + 1  # pending when the threads begin

    def forward(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        for _ in range(4):
            x = torch.relu(x @ weight + bias)
            x = x / x.sum()
        return x

    def work(number: int) -> list[torch.Tensor]:
        inputs = [torch.full((3, 6), 1.0 + number + k) for k in range(6)]
        got = [forward(x.to("tenon"), *shared) for x in inputs]
        return [t.cpu() for t in got]

    want = [
        [forward(torch.full((3, 6), 1.0 + n + k), weight * 2, bias + 1) for k in range(6)]
        for n in range(COUNT)
    ]
    for _ in turns(3):
        shared = weight.to("tenon") * 2, bias.to("tenon") + 1
        assert_same(together(work), want, rtol=1e-5, atol=1e-6)


def test_one_records_and_another_reads() -> None:
    for turn in turns(4):
        x = torch.rand(5, 5)

        def record(x: torch.Tensor = x, turn: int = turn) -> list[torch.Tensor]:
            y = x.to("tenon") + turn
            z = y * 2
            y.sub_(1)
            return [y, z, y[1:]]

        def expected(x: torch.Tensor = x, turn: int = turn) -> list[torch.Tensor]:
            y = x + turn
            return [y - 1, y * 2, (y - 1)[1:]]

        results = in_thread(record)
        assert_same(results, expected())
        results = record()
        in_thread(lambda r=results, e=expected: assert_same(r, e()))
        results = in_thread(record)
        more = [r * 3 for r in results]
        results[0].add_(1)
        assert_same(more, [w * 3 for w in expected()])
        assert_same(results[2], (x + turn)[1:])


@pytest.mark.slow
def test_a_tensor_goes_from_thread_to_thread() -> None:
    """Each writes what the one before it left recorded."""
    for turn in turns(4):
        there, here = torch.zeros(6, device="tenon"), torch.zeros(6)
        for number in range(12):

            def write(x: torch.Tensor, number: int = number + turn) -> None:
                x.add_(number)
                x[number % 6 :].mul_(0.5)

            write(here)
            if number % 3:
                in_thread(lambda x=there, write=write: write(x))
            else:
                write(there)
        assert_same(there, here)


def test_queues_between_threads() -> None:
    """A loader and a consumer: what the first recorded is complete where the second uses it."""
    for turn in turns(3):
        queue: Queue[torch.Tensor | None] = Queue(maxsize=2)

        def load(queue: Queue = queue, turn: int = turn) -> None:
            for number in range(20):
                batch = torch.full((4, 3), float(number + turn)).to("tenon")
                queue.put((batch * 2).sub_(1))
            queue.put(None)

        thread = threading.Thread(target=load, daemon=True)
        thread.start()
        totals = torch.zeros(3, device="tenon")
        seen = []
        while (batch := queue.get(timeout=TIMEOUT)) is not None:
            totals += batch.sum(0)
            seen.append(batch.mean().item())
        thread.join(TIMEOUT)
        assert seen == [2.0 * (n + turn) - 1 for n in range(20)]
        assert totals.tolist() == [4 * sum(seen)] * 3


def test_a_thread_that_ends_with_work_pending() -> None:
    for turn in turns(4):
        kept: list[torch.Tensor] = []
        shared = torch.zeros(4, device="tenon")

        def leave(kept: list = kept, shared: torch.Tensor = shared, turn: int = turn) -> None:
            x = torch.ones(4, device="tenon") * turn
            shared.add_(x)
            torch.sin(x + 1)  # nobody has it
            kept.append(x.view(2, 2) + 0.5)

        in_thread(leave)
        in_thread(leave)
        settle()
        assert_same(kept, [torch.full((2, 2), turn + 0.5)] * 2)
        assert shared.tolist() == [2.0 * turn] * 4


def test_nothing_is_left_of_threads_that_ended_with_work_pending(nothing_leaked: None) -> None:
    shared = torch.zeros(4, device="tenon")
    mine = torch.zeros(4, device="tenon")
    kept: list[torch.Tensor] = []

    def leave(number: int) -> None:
        shared.add_(1)  # which has the next thread submit it
        mine.sum()  # nobody has it
        unread = torch.ones(1 << 12, device="tenon")
        unread.mul_(number)
        if number % 50 == 0:
            kept.append(unread[:2] + 1)

    for number in range(4):
        in_thread(lambda number=number: leave(number))
    before = _C.recorder_count()
    for number in range(4, 400):
        in_thread(lambda number=number: leave(number))
        until(lambda: _C.recorder_count() <= before + 1)
    assert shared.tolist() == [400.0] * 4
    assert [t.tolist() for t in kept] == [[50.0 * k + 1] * 2 for k in range(8)]


@pytest.mark.slow
def test_what_a_thread_recorded_while_a_window_of_it_ran() -> None:
    """The thread has ended when the window has: who ran it forgets nothing that came later."""
    x = torch.arange(4.0)
    gate = Gate()

    def copied(there: torch.Tensor) -> torch.Tensor:
        return gate.wait(there + 1) * 2

    for _ in turns(4):  # so that it is recorded from here on
        assert copied(x.to("tenon")).tolist() == [2, 4, 6, 8]
        assert ((x.to("tenon") - 1) * 3).tolist() == [-3, 0, 3, 6]
    gate.close()
    handed: Queue[torch.Tensor] = Queue()
    kept: list[torch.Tensor] = []

    def leave() -> None:
        there = x.to("tenon")
        handed.put(copied(there))
        gate.until_reached()
        kept.append((there - 1) * 3)

    def release() -> None:
        thread.join(TIMEOUT)
        gate.open()

    thread = threading.Thread(target=leave, daemon=True)
    releasing = threading.Thread(target=release, daemon=True)
    thread.start()
    first = handed.get(timeout=TIMEOUT)
    releasing.start()
    assert first.tolist() == [2, 4, 6, 8]
    releasing.join(TIMEOUT)
    assert kept[0].tolist() == [-3, 0, 3, 6]


def test_a_window_that_fails_leaves_nothing_of_its_thread() -> None:
    def leave(kept: list[torch.Tensor]) -> None:
        x = torch.rand(5, 2, device="tenon")
        index = torch.tensor([[0, 4], [9, 0]]).to("tenon")
        for _ in range(4):
            kept.append(x.gather(0, index) + 1)

    settle()
    before = _C.recorder_count()
    for _ in range(5):
        kept: list[torch.Tensor] = []
        in_thread(lambda kept=kept: leave_and_suppress(leave, kept))
        for t in kept:
            with pytest.raises(RuntimeError, match="index 9 is out of bounds"):
                t.cpu()
    torch.tenon.synchronize()  # what a thread left that had not quite ended when the next began
    until(lambda: _C.recorder_count() <= before)


def leave_and_suppress(leave: Callable[[list], None], kept: list) -> None:
    with contextlib.suppress(RuntimeError):  # where the first call of its kind runs at once
        leave(kept)


def test_errors_stay_in_the_thread_that_reads() -> None:
    def work(number: int) -> str:
        for turn in range(8):
            x = torch.rand(5, 2)
            there = x.to("tenon")
            bad = number % 2 and turn >= 3
            index = torch.tensor([[0, 4], [9 if bad else 1, 0]])
            sound = there * 2
            try:
                chosen = there.gather(0, index.to("tenon")) + 1
                there.add_(1)
                got = chosen.cpu()
            except RuntimeError as error:
                if not bad or "index 9 is out of bounds" not in str(error):
                    raise
            else:
                assert not bad
                assert_same(got, x.gather(0, index) + 1)
                assert_same(there, x + 1)
            assert_same(sound, x * 2)
            torch.tenon.synchronize()  # its own error was seen; another's is none of its business
        return "done"

    for _ in turns(2):
        assert together(work) == ["done"] * COUNT


def test_each_on_a_device_and_stream_of_its_own() -> None:
    def work(number: int) -> list[torch.Tensor]:
        torch.tenon.set_device(number % 2)
        with torch.tenon.stream(torch.tenon.Stream(f"tenon:{number % 2}")):
            x = torch.full((5,), float(number), device="tenon")
            for _ in range(20):
                x = (x * 0.5 + 1).sin()
            assert x.device.index == number % 2
            return [x.cpu(), x.to(f"tenon:{1 - number % 2}").cpu()]

    def expected(number: int) -> list[torch.Tensor]:
        x = torch.full((5,), float(number))
        for _ in range(20):
            x = (x * 0.5 + 1).sin()
        return [x, x]

    for _ in turns(3):
        want = [expected(n) for n in range(COUNT)]
        assert_same(together(work), want, rtol=1e-6, atol=1e-6)
