"""Windows in which a value's memory is a tensor's own, and is written later."""

from collections.abc import Callable
from pathlib import Path

import needs
import pytest
import torch
from fresh_process import run

from torch_tenon import _C
from torch_tenon.builder.counts import plan_counts

Tensors = tuple[torch.Tensor, ...]


def _mirrored(x: torch.Tensor) -> Tensors:
    a = x * 2
    c = a.flip(0)
    a[::2].add_(c[::2])
    return a, c


def _copied(x: torch.Tensor) -> Tensors:
    a = x * 2
    a[:5].add_(1)
    return a, a.repeat(1)


def _copied_between(x: torch.Tensor) -> Tensors:
    a = x * 2
    b = a + 1
    a[:5].copy_(b[:5])
    c = a.repeat(1)
    a[5:].mul_(b[5:])
    return a, b, c


def _lists(x: torch.Tensor) -> Tensors:
    return (*torch._foreach_add([x, x * 2], [x * 3, x]), *torch._foreach_sqrt([x]))


def _dies(x: torch.Tensor) -> Tensors:
    a = torch.empty_like(x)
    a[:7] = x[:7]
    a[7:] = 1
    b = a.repeat(1)
    a.neg_()
    return (b,)


def _turned(x: torch.Tensor) -> Tensors:
    a = x.flip(0)
    x[:9].copy_(a[:9].exp())
    x[9:].neg_()
    return a + x, a, x


def _gates_that_are_written(x: torch.Tensor) -> Tensors:
    """The other results of the cell are computed of the third, before it is written."""
    cell = torch.ops.aten._thnn_fused_lstm_cell
    h, c, gates = cell(x[:24].view(2, 12), x[9:].view(2, 12), x[:6].view(2, 3))
    gates[0].neg_()
    return h, c, gates


MEMORY = [
    _mirrored, _copied, _copied_between, _lists, _dies, _turned, _gates_that_are_written
]  # fmt: skip


@pytest.mark.parametrize("compute", MEMORY)
def test_memory_that_is_written_later(
    compute: Callable[[torch.Tensor], Tensors], compiled: None
) -> None:
    for _ in range(3):  # the first call of an op runs at once
        failed = plan_counts()["failed"]
        x = torch.rand(33)
        got = compute(x.to("tenon"))
        _C.commit_all()
        for theirs, ours in zip(compute(x), got, strict=True):
            torch.testing.assert_close(ours.cpu(), theirs)
        assert plan_counts()["failed"] == failed


@pytest.mark.slow
@needs.plans
def test_what_results_have_in_common_is_computed_once(tmp_path: Path) -> None:
    log = run(
        """
        import torch
        x, c = torch.rand(4, 64, device="tenon"), torch.rand(4, 16, device="tenon")
        for _ in range(3):
            made = torch.ops.aten._thnn_fused_lstm_cell(x, x + 1, c)
            print(made[0].sum().item())
        """,
        TENON_EXECUTE="compiled",
        TENON_LOG="code",
        TENON_CACHE_DIR=str(tmp_path),
    ).stderr
    kernels = [source for source in log.split("/* ") if "_thnn_fused_lstm_cell" in source]
    assert sum("sigmoid_f32(" in source for source in kernels) == 1


def test_floor_division_by_infinity(compiled: None) -> None:
    for _ in range(3):
        x = torch.tensor([-1.0, 0.5, 7.0, -0.0]) * torch.rand(1)
        for y in (torch.inf, -torch.inf, 2.0):
            want = torch.floor_divide(x, torch.full_like(x, y))
            device = x.to("tenon")
            got = torch.floor_divide(device, torch.full_like(device, y)) * 1
            torch.testing.assert_close(got.cpu(), want, rtol=0, atol=0)


def test_the_next_half_number(compiled: None) -> None:
    for _ in range(3):
        x = torch.rand(5).half()
        got = torch.nextafter(x.to("tenon"), x.to("tenon") + 1) * 1
        torch.testing.assert_close(got.cpu(), torch.nextafter(x, x + 1), rtol=0, atol=0)


def test_the_sign_of_truth(compiled: None) -> None:
    for _ in range(3):
        x = torch.rand(5) > 0.5
        got = torch.sign(x.to("tenon")) & True
        assert torch.equal(got.cpu(), torch.sign(x))


def test_a_composition_that_asks_for_data_is_a_call(compiled: None) -> None:
    for _ in range(3):
        failed = plan_counts()["failed"]
        x = torch.rand(6)
        got = torch.take(x.to("tenon"), torch.tensor(3).to("tenon")) + 1
        assert torch.equal(got.cpu(), x[3] + 1)
        assert plan_counts()["failed"] == failed


@needs.host_memory  # elsewhere they lie on the device
@pytest.mark.parametrize(
    "lengths", [(1 << 23,), (1 << 22, 3 << 20, 1 << 21, 7 << 20)], ids=["one", "several"]
)
def test_the_parts_of_a_sum_take_no_memory_of_the_device(
    lengths: tuple[int, ...], compiled: None
) -> None:
    """By a plan for one length, and by one for any."""
    for length in lengths:
        x = torch.ones(length).to("tenon")
        total = x.sum()
        torch.tenon.synchronize()
    for _ in range(3):
        total = x.sum()
        torch.tenon.synchronize()
        before = torch.tenon.memory_allocated()
        torch.tenon.reset_peak_memory_stats()
    total = x.sum()
    torch.tenon.synchronize()
    peak = torch.tenon.max_memory_allocated()
    assert total == length
    assert peak - before <= 1024  # a result beside the last one
