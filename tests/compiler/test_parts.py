"""Views and writes of parts of tensors inside of windows."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import needs
import pytest
import torch

from tests.against_cpu import assert_same
from tests.plans import last_plan, plans_made
from torch_tenon import _C
from torch_tenon.compiler.parts import ranges, whole_of
from torch_tenon.ir.values import Layout


def layout(x: torch.Tensor) -> Layout:
    return Layout(tuple(x.shape), tuple(x.stride()), x.storage_offset())


def views(rng: random.Random) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Dense tensors that number their elements, each with a view of it."""
    for _ in range(400):
        shape = [rng.choice([1, 2, 3, 4, 6]) for _ in range(rng.randint(1, 4))]
        x = torch.arange(torch.Size(shape).numel()).view(shape)
        x = x.permute(rng.sample(range(len(shape)), len(shape)))
        v = x
        for d in reversed(range(x.dim())):
            kind, n = rng.random(), x.shape[d]
            if kind < 0.2:
                v = v.select(d, rng.randrange(n))
            elif kind < 0.7:
                first = rng.randrange(n)
                v = v[(slice(None),) * d + (slice(first, None, rng.choice([1, 1, 2])),)]
        if v.dim() > 1 and rng.random() < 0.3:
            v = rng.choice([v.t() if v.dim() == 2 else v, v.diagonal(), v.flatten()])
        if v.untyped_storage().data_ptr() == x.untyped_storage().data_ptr():
            yield x, v


def test_where_the_elements_of_a_view_are() -> None:
    boxes = 0
    for x, v in views(random.Random(7)):
        box = ranges(layout(v), layout(x))
        if box is None:
            continue
        boxes += 1
        part = x
        for d, r in enumerate(box):
            part = part.index_select(d, torch.arange(r.first, r.first + r.step * r.length, r.step))
        kept = [d for d, r in enumerate(box) if r.dim >= 0]
        shown = part[tuple(slice(None) if d in kept else 0 for d in range(x.dim()))]
        order = sorted(range(len(kept)), key=lambda k: box[kept[k]].dim)
        assert torch.equal(shown.permute(order), v.squeeze())
    assert boxes > 150


def test_the_tensor_that_a_view_is_a_box_of() -> None:
    found = 0
    for x, v in views(random.Random(8)):
        whole = whole_of(layout(v), x.numel())
        if whole is None or ranges(layout(v), whole) is None:
            continue
        found += 1
        flat = torch.arange(x.numel()).as_strided(whole.sizes, whole.strides)  # type: ignore[arg-type]
        assert torch.equal(flat.flatten(), torch.arange(x.numel()))
    assert found > 100


def stencil(x: torch.Tensor) -> torch.Tensor:
    for _ in range(3):
        x[1:-1, 1:-1] = (x[:-2, 1:-1] + x[2:, 1:-1] + x[1:-1, :-2] + x[1:-1, 2:]) * 0.25
    return x


def border(x: torch.Tensor) -> torch.Tensor:
    y = torch.zeros_like(x)
    y[1:-1, 1:-1] = x[2:, 1:-1] - x[:-2, 1:-1]
    return x + y * 0.5


def halves(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y[:, :20] += 1
    y[:20] -= y[20:]
    y.t()[3] = 7
    return y


def columns(x: torch.Tensor) -> torch.Tensor:
    x[:, ::2] += 1
    x[1:, 1:].mul_(x[:-1, :-1] * 0.5)
    return x[1:-1].sin_()


# With the most kernels that they may take.
CASES = [(stencil, 3), (border, 1), (halves, 3), (columns, 4)]


@needs.plans
@pytest.mark.parametrize(("compute", "kernels"), CASES, ids=[f.__name__ for f, _ in CASES])
def test_parts_of_a_tensor_that_are_written(
    compute: Callable[[torch.Tensor], torch.Tensor], kernels: int, compiled: None
) -> None:
    start = torch.randn(40, 40)
    before = plans_made()
    for _ in range(3):  # the first call of an op runs at once
        x, there = start.clone(), start.to("tenon")
        want, got = compute(x), compute(there)
        _C.commit_all()
        assert_same([got, there], [want, x], 1e-6, 1e-6)
    assert plans_made() > before
    assert last_plan().kernels <= kernels


@pytest.mark.parametrize("new", [torch.uint8, torch.int16, torch.int32, torch.int64])
@pytest.mark.parametrize("old", [torch.uint8, torch.int16, torch.int32, torch.int64])
def test_elements_of_another_size(old: torch.dtype, new: torch.dtype) -> None:
    whole = torch.zeros(8, 16, 24, dtype=old)
    seen = 0
    for x in (whole, whole[2:], whole[:, :, 8:16], whole[..., 1:], whole[:, ::2], whole.mT):
        found = layout(x).rescaled(old.itemsize, new.itemsize)
        try:
            want = x.view(new)
        except RuntimeError:
            assert found is None
            continue
        assert found is not None
        assert (found.sizes, found.strides) == (tuple(want.shape), want.stride())
        assert found.offset == want.storage_offset()
        seen += 1
    assert seen >= 4
