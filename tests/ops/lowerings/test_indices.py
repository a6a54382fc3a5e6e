"""Ops that take indices: tensors without dimensions, and indices beyond the ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import needs
import pytest
import torch
from torch import Tensor, tensor
from torch.nn.functional import embedding

from tests.against_cpu import assert_same, executing
from tests.ops.lowerings.by_plan import compiled, on_tenon, same_by_plans, same_error_by_plans

pytestmark = needs.plans
REDUCTIONS = ("sum", "prod", "mean", "amax", "amin")

# Where a tensor without dimensions stands for one of one dimension: self, index and source.
RANKS = {
    "index without": (torch.arange(5.0), tensor(2), tensor(7.0)),
    "index and source": (torch.arange(5.0), tensor(2), tensor([7.0])),
    "all without": (tensor(3.0), tensor(0), tensor(7.0)),
    "self without": (tensor(3.0), tensor([0]), tensor([7.0])),
    "self without, index of three": (tensor(3.0), tensor([0, 0, 0]), tensor([7.0, 8.0, 9.0])),
}
# An empty index may have any rank.
RANKS |= {
    f"index {list(index)} of {list(sizes)}": (
        torch.arange(1.0, 1 + torch.Size(sizes).numel()).view(sizes),
        torch.zeros(index, dtype=torch.int64),
        torch.zeros(index),
    )
    for sizes in ((5,), (), (3, 4))
    for index in ((2, 0), (1, 0), (3, 0, 2), (0,))
}


@pytest.mark.parametrize("name", RANKS)
def test_ranks_along_a_dimension(name: str) -> None:
    def compute(x: Tensor, i: Tensor, s: Tensor) -> list[Tensor]:
        combined = [
            x.scatter_reduce(0, i, s, how, include_self=include)
            for how in REDUCTIONS
            for include in (True, False)
        ]
        zeros = torch.zeros_like(x)
        ones = zeros.scatter(-1, i, 1.0)
        return [x.gather(0, i), x.scatter(0, i, s), x.scatter(0, i, 5.0), ones, *combined]

    same_by_plans(compute, *RANKS[name], rtol=1e-6)


@pytest.mark.parametrize("name", ["index without", "all without", "self without"])
def test_ranks_of_slices(name: str) -> None:
    def compute(x: Tensor, i: Tensor, s: Tensor) -> list[Tensor]:
        same_rank = s.reshape(x.reshape(-1)[:1].shape if x.dim() else ())
        found = [
            x.index_select(0, i),
            x.index_add(0, i, same_rank, alpha=3),
            x.index_copy(0, i, s),
            x.index_fill(0, i, 4.0),
            x.index_fill(0, i, s.reshape(())),
            x.take(i),
            x.put(i, s),
            x.put(i, s, accumulate=True),
            x.take_along_dim(i, None),
        ]
        return found + [x.index_reduce(0, i, same_rank, how) for how in REDUCTIONS[1:]]

    same_by_plans(compute, *RANKS[name], rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int8, torch.bool])
def test_slices_of_other_dtypes(dtype: torch.dtype) -> None:
    def compute(x: Tensor, i: Tensor, s: Tensor) -> list[Tensor]:
        added = x.index_add(1, i, s) if dtype is torch.bool else x.index_add(1, i, s, alpha=3)
        # In place, twice to the same rows.
        y = x.clone().index_copy_(1, i, s).index_add_(1, i, s)
        return [added, x.index_copy(1, i, s), x.index_fill(1, i - 3, 1), y]

    x = torch.arange(12).reshape(3, 4).to(dtype)
    same_by_plans(compute, x, tensor([2, 0, 2]), torch.ones(3, 3).to(dtype))


@pytest.mark.slow
def test_gradients_of_slices() -> None:
    def compute(x: Tensor, i: Tensor, s: Tensor) -> Tensor:
        y = x.index_add(1, i, s, alpha=0.5) + x.index_copy(1, i, s) + x.index_fill(1, i, 2.0)
        return (y * y).sum()

    def gradients(run: Callable[..., Tensor], *inputs: Tensor) -> tuple[Tensor, ...]:
        x, i, s = inputs
        x, s = x.requires_grad_(), s.requires_grad_()
        return torch.autograd.grad(run(x, i, s), (x, s))

    inputs = torch.randn(2, 4), tensor([1, 3]), torch.randn(2, 2)
    want = gradients(compute, *inputs)
    with executing("compiled"):
        for run in (compute, compute, compiled(compute)):
            assert_same(gradients(run, *on_tenon([x.detach() for x in inputs])), want, 1e-5)


OPS: dict[str, Callable[[Tensor, Tensor, Tensor], Any]] = {
    "gather": lambda x, i, s: x.gather(0, i),
    "scatter": lambda x, i, s: x.scatter(0, i, s),
    "a number": lambda x, i, s: x.scatter(0, i, 1.0),
    "scatter_add": lambda x, i, s: x.scatter_add(0, i, s),
    "scatter_reduce": lambda x, i, s: x.scatter_reduce(0, i, s, "amax"),
    "index_select": lambda x, i, s: x.index_select(0, i),
    "index_add": lambda x, i, s: x.index_add(0, i, s),
    "index_copy": lambda x, i, s: x.index_copy(0, i, s),
    "index_fill": lambda x, i, s: x.index_fill(0, i, 1.0),
    "index_reduce": lambda x, i, s: x.index_reduce(0, i, s, "prod"),
    "take": lambda x, i, s: x.take(i),
    "put": lambda x, i, s: x.put(i, s),
    "an index": lambda x, i, s: x[i],
    "index_put": lambda x, i, s: x.index_put((i,), s),
    "embedding": lambda x, i, s: embedding(i, x.reshape(-1, 1)),
}
FROM_THE_END = (
    "index_fill",
    "take",
    "take_along_dim",
    "put",
    "an index",
    "index_put",
)  # negative ones count so
OF_ONE = ("gather", "scatter", "scatter_add", "index_select", "index_add", "index_reduce")


@pytest.mark.parametrize("name", OPS)
def test_beyond_the_ends(name: str) -> None:
    x, s = torch.arange(5.0), tensor([7.0])
    for at in (5, -6 if name in FROM_THE_END else -1):
        same_error_by_plans(OPS[name], (x, tensor([2]), s), (x, tensor([at]), s))


@pytest.mark.parametrize("name", OF_ONE)
def test_beyond_the_only_element(name: str) -> None:
    x, s = tensor(3.0), tensor(7.0)
    same_error_by_plans(OPS[name], (x, tensor(0), s), (x, tensor(1), s))


def test_the_index_that_a_copy_refuses() -> None:
    x, s = torch.arange(5.0, device="tenon"), tensor([7.0], device="tenon")
    copy = torch.compile(lambda i: x.index_copy(0, i, s), backend="tenon")
    with pytest.raises(IndexError, match=r"index_copy_\(\): index -1 is out of bounds"):
        copy(tensor([-1], device="tenon")).cpu()


def test_any_indices_where_a_mask_is_false() -> None:
    """Others count from the end where they are negative. Those beyond the ends are the ends."""

    def compute(x: Tensor, i: Tensor, j: Tensor, mask: Tensor) -> list[Tensor]:
        taken = torch.ops.aten._unsafe_masked_index
        added = torch.ops.aten._unsafe_masked_index_put_accumulate
        found = [taken(x, mask, [i, j], -7.0), taken(x, mask[0], [None, j], 0.5)]
        return [*found, taken(x, mask[:, :1], [i[:, 0]], 2.0), added(x, mask, [i, j], mask + 1.0)]

    i, j = torch.arange(-9, 9)[:, None], torch.arange(-8, 9, 2)[None]
    mask = torch.rand(18, 9) < 0.6
    same_by_plans(compute, torch.randn(5, 6), i, j, mask)


def test_what_is_in_a_set_is_in_order() -> None:
    x = torch.arange(12.0).view(3, 4).t()
    for some in (torch.arange(3.0), 2.0):
        assert compiled(torch.isin)(*on_tenon([x, some])).stride() == (torch.isin(x, some).stride())


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_what_is_combined_in_sixteen_bits(dtype: torch.dtype) -> None:
    """The CPU's kernels of scatters round once, those of slices after each of them."""

    def combined(x: Tensor, i: Tensor, s: Tensor) -> list[Tensor]:
        found = [
            *(x.scatter_reduce(0, i, s, how) for how in REDUCTIONS),
            *(x.scatter(0, i, s, reduce=how) for how in ("add", "multiply")),
            *(x.scatter(0, i, 1.013, reduce=how) for how in ("add", "multiply")),
            x.scatter_add(0, i, s),
        ]
        for how in REDUCTIONS[1:]:
            found += [
                x.index_reduce(0, i[:, 0], s, how, include_self=include)
                for include in (True, False)
            ]
        return found

    generator = torch.Generator().manual_seed(0)
    x, s = (torch.randn(n, 32, generator=generator).to(dtype) for n in (4, 40))
    same_by_plans(combined, x, torch.randint(0, 4, s.shape, generator=generator), s)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_what_is_added_in_sixteen_bits(dtype: torch.dtype) -> None:
    def added(x: Tensor, i: Tensor, s: Tensor) -> list[Tensor]:
        cube, more = x.view(4, 4, 8), s.view(40, 4, 8)
        found = [
            x.index_add(0, i, s),
            x.index_add(0, i.int(), s),
            x.t().index_add(-1, i, s.t()),
            cube.transpose(0, 1).index_add(1, i, more.transpose(0, 1)),
            x[:, 0].index_add(0, i, s[:, 0]),
        ]
        for alpha in (0.3, -2):
            found += [
                x.index_add(0, i, s, alpha=alpha),
                x[:, 0].index_add(0, i, s[:, 0], alpha=alpha),
            ]
        return found

    generator = torch.Generator().manual_seed(0)
    x, s = (torch.randn(n, 32, generator=generator).to(dtype) for n in (4, 40))
    same_by_plans(added, x, torch.randint(0, 4, (40,), generator=generator), s)


# Numbers of elements that a dtype cannot count: what it has of them is rounded, or begins again.
MANY = [(torch.bfloat16, 259), (torch.bfloat16, 700), (torch.float16, 2051), (torch.float16, 5000)]
MANY += [(torch.uint8, 256), (torch.uint8, 300), (torch.int8, 130), (torch.int8, 255)]


@pytest.mark.parametrize(("dtype", "count"), MANY, ids=str)
def test_means_of_more_than_the_dtype_counts(dtype: torch.dtype, count: int) -> None:
    """The CPU counts in the dtype of the result, and as it adds: in steps, or rounded once."""

    def means(x: Tensor, i: Tensor, s: Tensor) -> list[Tensor]:
        cube, more = x.view(3, 2, 2), s.view(-1, 2, 2)
        return [
            mean
            for include in (True, False)
            for mean in (
                x.scatter_reduce(0, i[:, None].expand(-1, 4), s, "mean", include_self=include),
                x.index_reduce(0, i, s, "mean", include_self=include),
                x.index_reduce(0, i.int(), s, "mean", include_self=include),
                x[:, 0].index_reduce(0, i, s[:, 0], "mean", include_self=include),
                cube.transpose(0, 1).index_reduce(
                    1, i, more.transpose(0, 1), "mean", include_self=include
                ),
            )
        ]

    generator = torch.Generator().manual_seed(0)
    s = (torch.rand(count, 4, generator=generator) * 3).to(dtype)
    same_by_plans(means, torch.ones(3, 4).to(dtype), torch.zeros(count, dtype=torch.int64), s)


@pytest.mark.parametrize("rows", [0, 3])
@pytest.mark.parametrize("padding", [-1, 1])
@pytest.mark.parametrize("kind", [torch.int32, torch.int64])
def test_gradients_of_no_row(rows: int, padding: int, kind: torch.dtype) -> None:
    """The CPU's kernel leaves them out. What a window looked up before has raised already."""
    at = tensor([0, 7, 1, -1, 2, 3, 0], dtype=kind)
    same_by_plans(
        lambda g, i: torch.ops.aten.embedding_dense_backward(g, i, rows, padding, False),
        torch.randn(7, 2),
        at,
    )
