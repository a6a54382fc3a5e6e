"""The memory of results that are recorded and did not run yet: it counts like any other."""

import gc

import pytest
import torch
from against_cpu import assert_same, executing
from turns import MODES, settle, turns

MIB = 1 << 20

pytestmark = pytest.mark.usefixtures("memory_limit")


@pytest.fixture(params=MODES, autouse=True)
def mode(request: pytest.FixtureRequest, no_plan_in_work: None):
    gc.collect()  # what other tests left in circles
    with executing(request.param):
        yield request.param


def megabytes(count: float) -> torch.Tensor:
    return torch.rand(int(count * MIB / 4))


def figures() -> tuple[int, int]:
    """The bytes allocated and reserved."""
    allocated, reserved = torch.tenon.memory_allocated(), torch.tenon.memory_reserved()
    assert allocated <= reserved
    return allocated, reserved


def dying(x: torch.Tensor) -> torch.Tensor:
    """Results of a megabyte and more that never outlive the window that makes them."""
    y = x * 2
    y = y + 1
    return y.sum()


def test_what_is_kept_counts_before_it_ran() -> None:
    x = megabytes(2)
    there = x.to("tenon")
    for _ in turns(6):  # these calls' results die, so far
        dying(there)
        settle()
    for turn in turns(4):
        settle()
        before, _ = figures()
        kept = [there * 2 + number for number in range(5)]
        _, reserved = figures()
        assert reserved >= before + 5 * 2 * MIB
        if turn % 2:
            assert_same(kept, [x * 2 + number for number in range(5)])
            assert figures()[0] - before >= 5 * 2 * MIB
        del kept
        settle()
        assert figures()[0] == before


@pytest.mark.slow
def test_beyond_the_limit_the_call_raises_and_nothing_is_lost() -> None:
    x = megabytes(2)
    there = x.to("tenon")
    for _ in turns(6):
        dying(there)
        settle()
    for _ in turns(4):
        torch.tenon.synchronize()
        torch.tenon.empty_cache()
        limit = torch.tenon.memory_reserved() + 16 * MIB
        torch.tenon.set_memory_limit(limit)
        kept: list[torch.Tensor] = []
        with pytest.raises(torch.OutOfMemoryError, match="tenon out of memory"):
            while len(kept) < 60:
                kept.append(there * 2 + len(kept))
                assert figures()[1] <= limit
        assert len(kept) >= 2, "16 MiB are free, and each takes 2 and 2 more for a while"
        assert figures()[1] <= limit
        assert_same(kept, [x * 2 + number for number in range(len(kept))])
        assert_same(there, x)
        del kept[1:]
        assert_same(there + 1, x + 1)
        assert_same(kept, [x * 2])
        torch.tenon.set_memory_limit(None)
        assert_same(dying(there), dying(x), rtol=1e-4)


def test_temporaries_that_die_fit_below_the_limit() -> None:
    """The loop needs some tensors at a time, however many calls are recorded."""
    x = megabytes(1)
    there = x.to("tenon")
    torch.tenon.synchronize()
    torch.tenon.empty_cache()
    limit = torch.tenon.memory_reserved() + 12 * MIB
    torch.tenon.set_memory_limit(limit)
    for turn in turns(4):
        y, want = there + turn, x + turn
        for number in range(20):
            z = y * 0.5
            y = torch.relu(z + number)
            assert figures()[1] <= limit
            want = torch.relu(want * 0.5 + number)
        del z
        assert_same(y, want)
        assert figures()[1] <= limit
        assert torch.tenon.max_memory_reserved() >= torch.tenon.max_memory_allocated()


@pytest.mark.slow
def test_a_training_loop_below_the_limit() -> None:
    torch.manual_seed(0)
    weight = torch.rand(300, 300) / 300
    x = torch.rand(64, 300)
    there = weight.to("tenon").requires_grad_()
    here = weight.clone().requires_grad_()
    batch = x.to("tenon")
    torch.tenon.synchronize()
    torch.tenon.empty_cache()
    limit = torch.tenon.memory_reserved() + 16 * MIB
    torch.tenon.set_memory_limit(limit)
    for _ in turns(5):
        for w, b in ((there, batch), (here, x)):
            for _ in range(4):
                (b @ w).tanh().matmul(w).square().mean().backward()
                with torch.no_grad():
                    w -= w.grad
                w.grad = None
            assert figures()[1] <= limit
        assert_same(there, here, rtol=1e-4, atol=1e-6)


def test_a_result_without_memory_for_it_is_no_result() -> None:
    """The call raises; what it would have written in place is as before."""
    x = megabytes(32)
    there = x.to("tenon")
    total = torch.zeros(4, device="tenon")
    for turn in turns(5):
        torch.tenon.synchronize()
        torch.tenon.empty_cache()
        total.add_(1)
        other = there[:8] * 2
        torch.tenon.set_memory_limit(torch.tenon.memory_reserved() + MIB)
        with pytest.raises(torch.OutOfMemoryError):
            torch.exp(there + turn).cpu()
        total.mul_(2)
        assert_same(other, x[:8] * 2)
        torch.tenon.set_memory_limit(None)
        assert_same([there.exp(), total], [x.exp(), torch.full((4,), 2.0 ** (turn + 2) - 2)], 1e-5)
