"""The greatest of windows and where it lies, as on PyTorch's CPU: ties, NaN, infinities."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from against_cpu import executing
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ops.lowerings.by_plan import same_by_plans

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
SPECIAL = torch.tensor([0.0, 1.0, 2.0, -torch.inf, torch.inf, torch.nan, -0.0])


@st.composite
def pools(draw: Any) -> tuple[int, list[int], dict[str, Any]]:
    rank = draw(st.sampled_from([2, 3]))

    def each(low: int, high: int) -> list[int]:
        return [draw(st.integers(low, high)) for _ in range(rank)]

    kernel = each(1, 3)
    options = {
        "kernel_size": kernel,
        "stride": each(1, 3),
        "padding": [draw(st.integers(0, k // 2)) for k in kernel],
        "dilation": each(1, 2),
        "ceil_mode": draw(st.booleans()),
    }
    return rank, each(5, 9), options


@pytest.mark.slow
@given(
    pool=pools(),
    dtype=st.sampled_from(DTYPES),
    special=st.booleans(),
    seed=st.integers(0, 1 << 16),
)
@settings(max_examples=12, deadline=None)
def test_values_and_places(
    pool: tuple[int, list[int], dict[str, Any]],
    dtype: torch.dtype,
    special: bool,
    seed: int,
) -> None:
    rank, sizes, options = pool
    torch.manual_seed(seed)
    shape = (2, 3, *sizes)
    x = torch.randn(shape)
    if special:
        x = SPECIAL[torch.randint(len(SPECIAL), shape)]
    x = x.to(dtype)
    function = F.max_pool2d if rank == 2 else F.max_pool3d
    want = function(x, **options, return_indices=True)
    with executing("compiled"):
        for _ in range(2):  # the first call of an op runs at once
            got = function(x.to("tenon") * 1, **options, return_indices=True)
            for ours, theirs in zip(got, want, strict=True):
                torch.testing.assert_close(ours.cpu(), theirs, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_greatest_of_what_is_rounded(dtype: torch.dtype, compiled: None) -> None:
    """Registers keep 16-bit numbers wide; which is the greatest is decided after rounding."""
    x = torch.rand(1, 4, 12, 12).to(dtype)
    for pool in (F.max_pool2d, F.adaptive_max_pool2d):
        want = pool(x + 1000, 4, return_indices=True)
        for _ in range(2):
            got = pool(x.to("tenon") + 1000, 4, return_indices=True)
            for ours, theirs in zip(got, want, strict=True):
                torch.testing.assert_close(ours.cpu(), theirs, rtol=0, atol=0)


@pytest.mark.parametrize("rank", [2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8])
def test_windows_in_which_nothing_is_great(rank: int, dtype: torch.dtype, compiled: None) -> None:
    """That lie beside the input, as dilation makes them, or over the least number alone."""
    pool = getattr(torch.ops.aten, f"max_pool{rank}d_with_indices")
    least = -torch.inf if dtype.is_floating_point else torch.iinfo(dtype).min
    for size in (1, 2, 5):
        x = torch.arange(size**rank).view(1, *[size] * rank).to(dtype)
        for dilation in range(2, min(5, size + 1) + 1):
            windows = ([2] * rank, [1] * rank, [1] * rank, [dilation] * rank, True)
            for image in (x, torch.full_like(x, least)):
                want = pool(image, *windows)
                for _ in range(2):
                    got = pool(image.to("tenon"), *windows)
                    for ours, theirs in zip(got, want, strict=True):
                        assert torch.equal(ours.cpu(), theirs), (size, dilation)


@pytest.mark.parametrize("size", [3, 9])
def test_large_and_overlapping_windows_have_gradients(size: int, compiled: None) -> None:
    x = torch.randn(2, 3, 20, 24)
    results = []
    for device in ("cpu", "tenon"):
        for _ in range(2):
            leaf = x.to(device, copy=True).requires_grad_()
            y = F.max_pool2d(leaf * 2, size, 2, 1)
            y.square().sum().backward()
        assert leaf.grad is not None
        results.append((y.detach().cpu(), leaf.grad.cpu()))
    torch.testing.assert_close(results[1], results[0])


@pytest.mark.parametrize("rank", [2, 3])
@pytest.mark.parametrize("dtype", DTYPES)
def test_windows_at_random_places(rank: int, dtype: torch.dtype, compiled: None) -> None:
    """The CPU rounds at each step that says where a window lies."""
    x = torch.randn(2, 3, *([97, 61] if rank == 2 else [17, 61, 23])).to(dtype)
    samples = torch.rand(2, 3, rank).to(dtype)
    pool = getattr(torch.ops.aten, f"fractional_max_pool{rank}d")
    out = [31, 27] if rank == 2 else [9, 27, 1]
    for inputs in ((x, samples), (x[0], samples[:1])):
        want = pool(inputs[0], [2] * rank, out, inputs[1])
        for _ in range(2):
            got = pool(inputs[0].to("tenon"), [2] * rank, out, inputs[1].to("tenon"))
            for ours, theirs in zip(got, want, strict=True):
                torch.testing.assert_close(ours.cpu(), theirs, rtol=0, atol=0)


@pytest.mark.parametrize("size", [(0, 3), (3, 0)])
def test_places_in_images_of_nothing_are_not_looked_at(size: tuple[int, int]) -> None:
    x, places = torch.ones(2, 3, 4, 5), torch.full((2, 3, 4, 5), 99)

    def unpooled(x: torch.Tensor, places: torch.Tensor) -> list[torch.Tensor]:
        flat = torch.ops.aten.max_unpool2d(x, places, size)
        deep = torch.ops.aten.max_unpool3d(x, places, (2, *size), (1, 1, 1), (0, 0, 0))
        return [flat, deep]

    for dynamic in (False, True):
        same_by_plans(unpooled, x, places, dynamic=dynamic)
