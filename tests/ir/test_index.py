"""Index expressions compute what integers do, and are canonical."""

from __future__ import annotations

import itertools
import random

from hypothesis import given
from hypothesis import strategies as st

from torch_tenon.ir.index import (
    Index,
    Symbol,
    bounds,
    evaluate,
    flat_index,
    floordiv,
    less,
    mod,
    never_meet,
    nonnegative,
    strides,
    substitute,
    unflatten,
    var,
)


def test_random_expressions_evaluate_like_integers() -> None:
    rng = random.Random(0)
    for _ in range(400):
        loops = [Symbol(f"i{k}", rng.choice([2, 3, 4, 6, 8])) for k in range(3)]
        e: Index = rng.randint(0, 5)
        want = [lambda v, c=e: c]
        for _ in range(rng.randint(1, 6)):
            kind = rng.randrange(4)
            n = rng.choice([1, 2, 3, 4, 6, 8, 12])
            before = want[-1]
            if kind == 0:
                s, k = rng.choice(loops), rng.randint(0, 12)
                e = e + var(s) * k
                want.append(lambda v, f=before, s=s, k=k: f(v) + v[s] * k)
            elif kind == 1:
                e = e * n
                want.append(lambda v, f=before, n=n: f(v) * n)
            elif kind == 2:
                e = floordiv(e, n)
                want.append(lambda v, f=before, n=n: f(v) // n)
            else:
                e = mod(e, n)
                want.append(lambda v, f=before, n=n: f(v) % n)
        values = []
        for point in itertools.product(*(range(s.extent) for s in loops)):  # type: ignore[arg-type]
            v = dict(zip(loops, point, strict=True))
            assert evaluate(e, v) == want[-1](v)
            values.append(evaluate(e, v))
        low, high = bounds(e)
        assert low is None or low <= min(values)
        assert high is None or high >= max(values)


def test_bounds_where_numbers_and_divisors_are_known_at_run_time() -> None:
    """Of expressions in a loop variable, a size and a number of either sign, divided by numbers and
    by the size: what is certain of them holds wherever they are evaluated."""
    rng = random.Random(0)
    i, n, t = Symbol("i", 5), Symbol("n", None, 2), Symbol("t", None, -4)
    points = [
        dict(zip((i, n, t), v, strict=True))
        for v in itertools.product(range(5), (2, 3, 7), (-4, -1, 0, 3))
    ]

    def made() -> Index:
        e: Index = rng.randint(-6, 6)
        for _ in range(rng.randint(1, 4)):
            kind = rng.randrange(5)
            divisor = rng.choice([2, 3, var(n), var(n) * 2])
            if kind == 0:
                e = floordiv(e, divisor)
            elif kind == 1:
                e = mod(e, divisor)
            else:
                e = e + rng.choice([var(i), var(n), var(t), var(i) * var(t)]) * rng.randint(-2, 2)
        return e

    decided = 0
    for _ in range(2000):
        e, d = made(), made()
        values = [evaluate(e, p) for p in points]
        others = [evaluate(d, p) for p in points]
        low, high = bounds(e)
        assert low is None or low <= min(values), (e, low)
        assert high is None or high >= max(values), (e, high)
        assert not nonnegative(e) or min(values) >= 0, e
        if less(e, d):
            decided += 1
            assert all(x < y for x, y in zip(values, others, strict=True)), (e, d)
    assert decided > 100


def test_a_reshape_and_back_is_the_identity() -> None:
    n = Symbol("n", None, 2)
    i, j = Symbol("i", var(n)), Symbol("j", 8)
    position = [var(i), var(j)]
    flat = flat_index(position, [var(n), 8])
    assert unflatten(flat, [var(n), 8]) == position
    k = Symbol("k", var(n) * 8)
    assert flat_index(unflatten(var(k), [var(n), 8]), [var(n), 8]) == var(k)


def test_what_ranges_decide_is_never_built() -> None:
    i, j = Symbol("i", 6), Symbol("j", 4)
    assert floordiv(var(i) * 4 + var(j), 4) == var(i)
    assert mod(var(i) * 4 + var(j), 4) == var(j)
    assert strides(var(i) * 4 + var(j) + 3) == {i: 4, j: 1}
    assert strides(floordiv(var(i), 4)) is None
    assert substitute(floordiv(var(i), 4), {i: var(j)}) == 0


@given(st.data())
def test_indices_that_never_meet(data: st.DataObject) -> None:
    loops = [Symbol("ijk"[n], data.draw(st.integers(1, 4))) for n in range(3)]
    a: Index = data.draw(st.integers(0, 20))
    for s in loops:
        a = a + var(s) * data.draw(st.integers(1, 12))
    b = a + data.draw(st.integers(-40, 40))
    positions = [
        dict(zip(loops, p, strict=True))
        for p in itertools.product(*(range(s.extent) for s in loops))  # type: ignore[arg-type]
    ]
    meet = {evaluate(a, p) for p in positions} & {evaluate(b, p) for p in positions}
    if never_meet(a, b):
        assert not meet


def test_the_parts_of_a_concatenation_never_meet() -> None:
    i, j = Symbol("i", 6), Symbol("j", 4)
    first = var(i) * 12 + var(j)
    assert never_meet(first, first + 4) and never_meet(first + 8, first)
    assert not never_meet(first, first + 3) and not never_meet(first, first + 12)
    assert not never_meet(first, var(i) * 12 + 4)


def test_products_are_compared_by_their_factors() -> None:
    a, b = var(Symbol("a", None, 2)), var(Symbol("b", None, 3))
    half, other = floordiv(a, 2), floordiv(b * 4, 3)
    pairs = ((a * b, a * 3), (half * b, half + 2), (a * b, a + b + 1), (half * other, 4))
    for larger, smaller in pairs:
        assert nonnegative(larger - smaller), (larger, smaller)
        assert not nonnegative(larger - smaller - 1)
    assert not nonnegative(a * b - a * 4)
    assert not nonnegative(var(Symbol("i", 8)) * b - b)


def test_divisions_that_leave_less_than_nothing() -> None:
    n, m = var(Symbol("n", None, 2)), var(Symbol("m", None, 1))
    assert floordiv(n * m + n - 1, n) == m
    assert mod(n * m + n - 1, n) == n - 1
    assert floordiv(n * m - n, n) == m - 1
    assert floordiv(n * m - 2, n) == m - 1
    assert floordiv(n * m - 3, n) != m - 1
