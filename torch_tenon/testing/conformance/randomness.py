"""Whether two random computations draw from the same distribution.

Nothing is assumed about the distributions: they differ from element to element (dropout of an
input), may have no moments (Cauchy) or be discrete. Each side runs `RUNS` times; each run gives
a few numbers (its mean, its mean square, how many elements are zero, ...). If both sides draw alike
then all `2 * RUNS` numbers are exchangeable, and the Mann-Whitney U of the two groups has a known
distribution, whatever the numbers are; ties are broken at random, which keeps it exact.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from .comparison import Mismatch, on_cpu
from .placement import tensors_in

RUNS = 32
# Two-sided, for each number; with fewer than ten numbers, below 1e-9 for each check.
FALSE_ALARM = 1e-10

_STATISTICS = (
    "mean",
    "mean square",
    "weighted sum",
    "count of zeros",
    "count of negatives",
    "count of non-integers",
    "count of non-finite elements",
)


def draws(run: Callable[[], Any], generators: tuple[torch.Generator, ...] = ()) -> tuple[Any, bool]:
    """The value of `run()` and whether it drew from the CPU's default or the given generators."""

    def states() -> list[torch.Tensor]:
        return [torch.get_rng_state(), *(generator.get_state() for generator in generators)]

    before = states()
    value = run()
    return value, not all(map(torch.equal, before, states()))


def check_distribution(actual: Callable[[], Any], expected: Callable[[], Any]) -> None:
    """Raises Mismatch unless `actual()` (device) and `expected()` (CPU) draw alike.

    Both are called `RUNS` times without reseeding between; their tensors are flattened in order.
    The rate of false alarms is below 1e-9.
    """
    theirs = [_flatten(expected()) for _ in range(RUNS)]
    mine = [_flatten(actual()) for _ in range(RUNS)]
    if theirs[0].numel() == 0:
        return
    if len({_bits(run) for run in theirs}) == RUNS and len({_bits(run) for run in mine}) == 1:
        raise Mismatch("not random", f"{RUNS} runs gave one result; on the CPU all of them differ")
    weights = (
        torch.randint(0, 2, theirs[0].shape, generator=torch.Generator().manual_seed(0))
        .double()
        .mul_(2)
        .sub_(1)
    )
    ours = torch.stack([_statistics(run, weights) for run in mine])
    cpus = torch.stack([_statistics(run, weights) for run in theirs])
    for index, name in enumerate(_STATISTICS):
        a, b = ours[:, index].tolist(), cpus[:, index].tolist()
        if mann_whitney(a, b) <= critical_value(RUNS, FALSE_ALARM):
            raise Mismatch(
                "distribution differs",
                f"{name} over {RUNS} runs of {theirs[0].numel()} elements is around "
                f"{sorted(a)[RUNS // 2]:.6g}, on the CPU around {sorted(b)[RUNS // 2]:.6g}",
            )


def mann_whitney(one: list[float], other: list[float]) -> int:
    """min(U, U') of two samples, ties broken at random (with a fixed seed)."""
    coin = random.Random(0)
    tagged = [(value, coin.random(), 1) for value in one]
    tagged += [(value, coin.random(), 0) for value in other]
    u = seen = 0
    for _, _, mine in sorted(tagged):
        if mine:
            u += seen
        else:
            seen += 1
    return min(u, len(one) * len(other) - u)


@cache
def critical_value(n: int, alpha: float) -> int:
    """The largest c with P(min(U, U') <= c) <= alpha for two samples of `n`; -1 if there is none.

    Counts the orders of the two samples by U with the recurrence of Mann and Whitney (1947).
    """
    counts = [[[1] for _ in range(n + 1)]]  # counts[i][j][u] for i of one sample and j of the other
    for i in range(1, n + 1):
        row: list[list[int]] = [[1]]
        for j in range(1, n + 1):
            # The largest value is one of the first sample, above all j, or of the second.
            above, below = counts[i - 1][j], row[j - 1]
            merged = [0] * (i * j + 1)
            for u, count in enumerate(above):
                merged[u + j] += count
            for u, count in enumerate(below):
                merged[u] += count
            row.append(merged)
        counts.append(row)
    orders = counts[n][n]
    total, reached = sum(orders), 0
    for u, count in enumerate(orders):
        reached += 2 * count
        if reached / total > alpha:
            return u - 1
    return len(orders) - 1


def _flatten(value: Any) -> torch.Tensor:
    parts, eps = [], 0.0
    for tensor in tensors_in(value):
        tensor = on_cpu(tensor)
        tensor = tensor.to_dense() if tensor.layout != torch.strided else tensor
        if tensor.dtype.is_complex:
            tensor = torch.view_as_real(tensor.to(torch.complex128))
        parts.append(tensor.double().flatten())
        if tensor.dtype.is_floating_point:
            eps = max(eps, torch.finfo(tensor.dtype).eps)
    flat = torch.cat(parts) if parts else torch.empty(0, dtype=torch.double)
    # Beside the largest, what is below its rounding is zero: a sum that cancels does so exactly or
    # not with the precision of what lies between.
    largest = torch.nan_to_num(flat, posinf=0.0, neginf=0.0).abs().max() if len(flat) else 0.0
    return torch.where(flat.abs() <= largest * eps, 0.0, flat)


def _bits(flat: torch.Tensor) -> bytes:
    return flat.numpy().tobytes()


def _statistics(flat: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    finite = torch.nan_to_num(flat, nan=0.0, posinf=0.0, neginf=0.0)
    return torch.stack(
        [
            finite.mean(),
            finite.square().mean(),
            (finite * weights).sum(),
            (flat == 0).sum(),
            (flat < 0).sum(),
            (finite != finite.round()).sum(),
            (~flat.isfinite()).sum(),
        ]
    )
