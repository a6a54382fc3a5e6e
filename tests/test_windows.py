"""Where windows end: at the same places of a loop, whatever came before."""

import gc
import random

import needs
import pytest
import torch
from against_cpu import executing
from fresh_process import output
from torch import nn
from torch.nn import functional as F

from torch_tenon.builder.counts import plan_counts

WIDTH = 22


def settled() -> dict[str, int]:
    torch.tenon.synchronize()
    return plan_counts()


def asked() -> int:
    counts = settled()
    return counts["ready"] + counts["failed"] + counts["waiting"]


class Layer(nn.Module):
    """A transformer's layer, or one that is squashed in the end."""

    def __init__(self, squash: bool = False) -> None:
        super().__init__()
        self.squash = squash
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        y = x + self.down(F.gelu(self.up(self.norm2(x))))
        return torch.tanh(y) if self.squash else y


def train(layers: list[nn.Module], steps: int) -> int:
    """Trains; the number of windows of the last step."""
    model = nn.Sequential(*layers).to("tenon")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x = torch.randn(2, 5, WIDTH).to("tenon")
    windows = 0
    for _ in range(steps):
        before = settled()
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        after = settled()
        windows = sum(after[k] - before[k] for k in ("hits", "reference"))
    return windows


@needs.plans
def test_equal_layers_share_plans_and_a_changed_one_costs_a_few(no_plan_in_work: None) -> None:
    before = asked()
    windows = train([Layer() for _ in range(12)], 8)
    assert windows >= 12
    # As a rule 2 to 6 of 19; a process that is held up ends some windows elsewhere.
    assert 0 < asked() - before <= windows * 2 // 3, "equal layers make equal windows"
    # What is new but no change: windows of first steps that come for the second time, an op whose
    # layouts are not known runs at once.
    train([Layer() for _ in range(12)], 8)
    x = torch.randn(2, 5, WIDTH, device="tenon", requires_grad=True)
    torch.tanh(x * 1).backward(torch.randn_like(x))
    before = asked()
    windows = train([Layer(squash=k == 6) for k in range(12)], 8)
    assert 0 < asked() - before <= windows // 4


@pytest.mark.slow
@needs.plans
@pytest.mark.parametrize("period", [90, 410, 700])
def test_a_loop_that_nobody_waits_for_has_stable_windows(period: int) -> None:
    """No call of it starts from memory: windows end where they became too long before."""
    ops = [torch.neg, torch.abs, torch.relu, torch.frac, torch.trunc, torch.square]
    chosen = random.Random(period).choices(ops, k=period)
    x = torch.randn(9000, device="tenon")  # smaller calls would run when they are made

    def steps(x: torch.Tensor, count: int) -> torch.Tensor:
        for _ in range(count):
            for op in chosen:
                x = op(x)
        return x

    x = steps(x, 20)
    copy = x.cpu()
    x = steps(x, 20)
    before = plan_counts()
    x = steps(x, 20)
    after = plan_counts()
    assert after["structures"] - before["structures"] <= 1, "the one in which `steps` ends"
    assert sum(after[k] - before[k] for k in ("hits", "reference")) >= 20 * period // 512
    torch.testing.assert_close(x.cpu(), steps(copy, 40))


@needs.plans
@pytest.mark.parametrize("period", [3, 34, 45, 101, 127])
def test_a_short_loop_has_windows_of_one_structure(period: int, no_plan_in_work: None) -> None:
    """Windows are of whole rounds, from the same place of a round whatever came before: those of a
    fixed length would begin at each place of it."""
    ops = [torch.neg, torch.abs, torch.relu, torch.frac, torch.trunc, torch.square]
    chosen = random.Random(period).choices(ops, k=period)

    def rounds(x: torch.Tensor, count: int) -> torch.Tensor:
        for _ in range(count):
            for op in chosen:
                x = op(x)
        return x

    start = torch.randn(9000)  # smaller calls would run when they are made
    x = rounds(start.to("tenon"), 1)
    before = settled()
    x = rounds(x, 9000 // period)
    copy = x.cpu()
    x = rounds(x[:8000], 4000 // period)
    assert settled()["structures"] - before["structures"] <= 8, "of both loops with their ends"
    torch.testing.assert_close(copy, rounds(start, 1 + 9000 // period))
    torch.testing.assert_close(x.cpu(), rounds(copy[:8000], 4000 // period))


@needs.plans
def test_a_read_ends_the_window_also_where_it_needs_none(no_plan_in_work: None) -> None:
    """Rounds that end with a read have windows of whole rounds, wherever the first ones began."""
    ready = torch.ones(1, device="tenon") * 2
    assert ready.item() == 2
    x = torch.randn(6, device="tenon")
    for _ in range(3):  # the first time it runs at once
        y = x * 1.5
        before = plan_counts()
        assert ready.item() == 2
        after = plan_counts()
    assert sum(after[k] - before[k] for k in ("hits", "reference")) == 1
    torch.testing.assert_close(y.cpu(), x.cpu() * 1.5)


@pytest.mark.slow
def test_a_window_holds_no_more_than_eager_code_would(no_plan_in_work: None) -> None:
    """The input and the result of each layer, beside the weights; what died is let go of, though
    the calls that read it run later."""
    weights = [torch.rand(512, 512, device="tenon") / 512 for _ in range(6)]
    layer = weights[0].untyped_storage().nbytes()

    def forward() -> int:
        x = torch.rand(512, 512, device="tenon")
        torch.tenon.synchronize()
        before = torch.tenon.memory_allocated()
        torch.tenon.reset_peak_memory_stats()
        for w in weights:
            x = torch.relu(x @ w + 1)
        torch.tenon.synchronize()
        return (torch.tenon.max_memory_allocated() - before) // layer

    with executing("compiled"):
        assert [forward() for _ in range(3)][-1] <= 2


def test_what_always_dies_unwritten_takes_no_memory(no_plan_in_work: None) -> None:
    """A list of results that dies in the window that made it: no memory is had for it."""
    tensors = [torch.rand(512, 1024, device="tenon") for _ in range(4)]
    torch.tenon.synchronize()
    gc.collect()  # what other tests left in circles
    before = torch.tenon.memory_allocated()

    def step() -> tuple[int, int, int]:
        torch.tenon.empty_cache()
        torch.tenon.reset_peak_memory_stats()
        segments = torch.tenon.memory_stats()["num_device_alloc"]
        roots = torch._foreach_sqrt(tensors)
        torch._foreach_add_(tensors, roots)
        del roots
        peak = torch.tenon.max_memory_allocated() - before
        left = torch.tenon.memory_allocated() - before
        torch.tenon.synchronize()
        return peak, left, torch.tenon.memory_stats()["num_device_alloc"] - segments

    with executing("compiled"):
        assert [step() for _ in range(4)][-1] == (0, 0, 0)
        roots = torch._foreach_sqrt(tensors)
        addresses = [r.data_ptr() for r in roots]
        torch.tenon.synchronize()
        assert torch.tenon.memory_allocated() - before == sum(r.nbytes for r in roots)
        for r, t, address in zip(roots, tensors, addresses, strict=True):
            torch.testing.assert_close(r.cpu(), t.cpu().sqrt())
            assert r.data_ptr() == address
        del roots, r
        assert torch.tenon.memory_allocated() == before


def test_a_result_that_dies_leaves_the_place_of_one_that_lives() -> None:
    """By reference: the loss dies, and backward may need its total weight, of the same size."""
    x = torch.randn(1, 2)
    target = torch.zeros(1, dtype=torch.int64)
    for _ in range(4):
        leaf = x.to("tenon").requires_grad_()
        loss = torch.nn.functional.cross_entropy(leaf, target.to("tenon"))
        total = torch.zeros(2, device="tenon")
        total[1:] += loss
        loss = leaf.pow(2)
        want = torch.nn.functional.cross_entropy(x, target)
        torch.testing.assert_close(total[1].detach().cpu(), want)


@pytest.mark.slow
def test_a_small_call_by_reference_takes_one_thread() -> None:
    """It would wait for the others longer than it runs, most of all on a busy machine."""
    code = """
        import ctypes, torch

        seen = []
        mkl = ctypes.CDLL(torch._C.__file__)
        for_mkl = getattr(mkl, "MKL_Get_Max_Threads", torch.get_num_threads)

        def threads(x):
            seen.append((x.numel(), torch.get_num_threads(), for_mkl()))
            return x.clone()

        library = torch.library.Library("tenon_tests", "DEF")  # before the device looks
        library.define("threads(Tensor x) -> Tensor")
        library.impl("threads", threads, "CPU")
        library.impl("threads", torch.empty_like, "Meta")
        import torch_tenon

        torch.set_num_threads(2)
        small, large = torch.ones(100, device="tenon"), torch.ones(200, 200, device="tenon")
        for x in (small, large, small, large):
            torch.ops.tenon_tests.threads(x)
        torch.tenon.synchronize()
        print(*seen[2:], torch.get_num_threads(), for_mkl())
    """
    printed = output(code, TORCH_DEVICE_BACKEND_AUTOLOAD="0", TENON_EXECUTE="auto")
    assert printed.strip() == "(100, 1, 1) (40000, 2, 2) 2 2"
