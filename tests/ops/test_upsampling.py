"""Images made larger by plans, where scales do not fit the sizes of the results."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import needs
import pytest
import torch
import torch.nn.functional as F
from against_cpu import assert_same
from ops.lowerings.by_plan import (
    compiled,
    on_tenon,
    same_at_sizes,
    same_by_plans,
    with_gradients,
)

pytestmark = needs.plans

aten = torch.ops.aten
SCALES = (None, 0.5, 0.1, 1.0, 2.0, 3.0, 1.7, -1.0, 0.0, 1e9)


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["upsample_nearest", "_upsample_nearest_exact"])
@pytest.mark.parametrize(
    ("dtype", "channels_last"),
    [(torch.float32, False), (torch.bfloat16, True)],
)
def test_the_nearest_element_is_one_of_the_image(
    kind: str, dtype: torch.dtype, channels_last: bool, some: Callable[..., list]
) -> None:
    formats = ((1, None), (2, torch.channels_last), (3, torch.channels_last_3d))
    for n, format in formats:
        sizes = (7, 2, 5)[:n]
        x = torch.arange(4 * torch.Size(sizes).numel()).remainder(251).view(1, 4, *sizes).to(dtype)
        if channels_last and format:
            x = x.to(memory_format=format)
        op = getattr(aten, f"{kind}{n}d").default
        results = some(itertools.product(((7, 2, 5), (14, 4, 10), (5, 5, 9)), SCALES), 6)
        of_rank = functools.partial(_each, op, [(made[:n], [s] * n) for made, s in results])
        same_by_plans(of_rank, x)


def _each(op: Any, ways: list[tuple[Any, Any]], x: torch.Tensor) -> list[torch.Tensor]:
    return [op(x, made, *scales) for made, scales in ways]


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize("align_corners", [False, True])
def test_between_elements_of_the_image(align_corners: bool, some: Callable[..., list]) -> None:
    outs = (3, 3, 9), (3, 4, 5), (6, 8, 10), (1, 1, 1)
    ways = some(itertools.product(outs, SCALES), 6)

    def compute(x: torch.Tensor) -> list[torch.Tensor]:
        found = []
        for out, s in ways:
            found.append(aten.upsample_trilinear3d(x, out, align_corners, s, s, s))
            found.append(aten.upsample_bilinear2d(x[0], out[1:], align_corners, s, s))
            found.append(aten.upsample_linear1d(x[0, 0], out[2:], align_corners, s))
        return found

    same_by_plans(compute, torch.randn(1, 2, 3, 4, 5), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("mode", "sizes", "channels_last"),
    [
        ("linear", (2, 3, 17), None),
        ("bilinear", (1, 4, 7, 9), None),
        ("bilinear", (1, 4, 7, 9), torch.channels_last),
        ("bilinear", (1, 1, 60, 50), None),
        ("trilinear", (1, 4, 5, 6, 7), None),
        ("trilinear", (1, 4, 5, 6, 7), torch.channels_last_3d),
    ],
)
def test_weights_of_16_bit_images(
    mode: str, sizes: tuple[int, ...], channels_last: torch.memory_format | None, dtype: torch.dtype
) -> None:
    """They are rounded where those of the CPU's kernel are."""
    x = torch.randn(sizes).to(dtype)
    if channels_last:
        x = x.to(memory_format=channels_last)
    unit = torch.finfo(dtype).eps

    def compute(x: torch.Tensor) -> list[torch.Tensor]:
        ways = ((1.7, False), (2.0, True), (0.6, False))
        return [F.interpolate(x, None, s, mode, align_corners=a) for s, a in ways]

    same_by_plans(compute, x, rtol=unit, atol=unit / 16)


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear", "bicubic"])
def test_images_of_bytes_and_scales_of_as_many_elements(mode: str) -> None:
    def compute(x: torch.Tensor) -> list[torch.Tensor]:
        return [F.interpolate(x, None, s, mode) for s in (1.01, 0.5, 2.0, (1.3, 0.7))]

    whole = torch.arange(560).remainder(251).view(1, 16, 7, 5).to(torch.uint8)
    same_by_plans(compute, whole)
    same_by_plans(compute, whole.to(memory_format=torch.channels_last))
    same_by_plans(compute, torch.randn(1, 4, 7, 5), rtol=1e-5, atol=1e-5, dynamic=True)


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize(("mode", "rank"), [("linear", 1), ("bilinear", 2), ("trilinear", 3)])
def test_as_many_elements_as_there_were(mode: str, rank: int, align_corners: bool) -> None:
    """Each counts twice, the second time with a weight of 0, and none of its neighbours does."""

    def resized(x: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x, like.shape[2:], None, mode, align_corners)

    def images(n: int) -> list[torch.Tensor]:
        x = torch.randn(1, 2, *(n, 4, 5)[:rank])
        x.view(-1)[[1, 6, -1]] = torch.tensor([math.inf, math.nan, -math.inf])
        return [x, torch.empty(1, 1, *(6, 9, 5)[:rank])]

    same_by_plans(resized, *images(6), rtol=1e-5, atol=1e-5)
    same_at_sizes(resized, images, rtol=1e-5, atol=1e-5)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    ("mode", "rank"), [("nearest", 1), ("nearest-exact", 2), ("linear", 1), ("bicubic", 2)]
)
def test_images_of_no_element_are_refused(mode: str, rank: int, dynamic: bool) -> None:
    def resized(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x, scale_factor=0.4, mode=mode)

    graph = compiled(resized, dynamic)
    for sizes in ((2, 3, 7, 8), (2, 3, 2, 2), (2, 0, 7, 8), (0, 3, 7, 8)):
        x = torch.randn(sizes[: 2 + rank])
        try:
            want = resized(x)
        except RuntimeError:
            with pytest.raises(RuntimeError):
                graph(x.to("tenon"))
        else:
            assert_same(graph(x.to("tenon")), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear"])
def test_gradients_of_images(mode: str) -> None:
    def loss(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x, scale_factor=1.7, mode=mode).square().sum()

    x, there = (torch.randn(1, 2, 4, 5).to(d).requires_grad_() for d in ("cpu", "tenon"))
    there.data.copy_(x.data)
    loss(x).backward()
    compiled(loss)(there).backward()
    assert_same(there.grad, x.grad, rtol=1e-5, atol=1e-5)


MODES_BY_RANK = [
    *(("nearest", n, {}) for n in (1, 2, 3)),
    *(("nearest-exact", n, {}) for n in (1, 2, 3)),
    *((m, n, {}) for m, n in (("linear", 1), ("bilinear", 2), ("bicubic", 2), ("trilinear", 3))),
    *((m, 2, {"antialias": True}) for m in ("bilinear", "bicubic")),
]


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize(("mode", "rank", "how"), MODES_BY_RANK)
@pytest.mark.parametrize("scale", [1.5, 1.01, 2.05])
def test_gradients_at_sizes(mode: str, rank: int, how: dict[str, Any], scale: float) -> None:
    """In a graph of any sizes, whether a scale is one that the kernel takes no notice of or not."""

    def resized(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x, scale_factor=scale, mode=mode, **how)

    dynamic = compiled(resized, dynamic=True)
    formats = {2: torch.channels_last, 3: torch.channels_last_3d}
    for n, last in ((6, False), (8, False), (8, rank > 1)):
        x = torch.randn(2, 4, *(n + k for k in range(rank)))
        x = x.to(memory_format=formats[rank]) if last else x
        want = with_gradients(resized, [x.clone()])
        assert_same(with_gradients(dynamic, on_tenon([x])), want, rtol=1e-4, atol=1e-4)
