"""Index expressions compute what integers do, and are canonical."""

from __future__ import annotations

import itertools
import random

from torch_tenon.ir.index import (
    Index,
    Symbol,
    bounds,
    evaluate,
    flat_index,
    floordiv,
    mod,
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
