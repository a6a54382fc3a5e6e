"""Loops of a node that are joined or cut, and loops of two nodes that are cut to agree.

The scheduler aligns loops by the memory that they go through: by its steps, the strides of an index
in each loop.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch_tenon.ir.index import (
    Division,
    Expr,
    Index,
    Symbol,
    floordiv,
    mod,
    product,
    strides,
    substitute,
    symbols,
    var,
)
from torch_tenon.ir.program import Loop
from torch_tenon.ir.values import size_hint


def simplify(node: Loop) -> Loop:
    """The node with loops cut that its indices divide, and neighbouring loops joined where every
    index allows it (in place)."""
    indices = _indices(node)
    if node.kind != "scatter" and any(strides(e) is None for e in indices):
        node.outer = _cut(node, node.outer)
        if node.kind == "reduce":
            node.inner = _cut(node, node.inner)
        indices = _indices(node)
    node.outer = _join(node, node.outer, indices)
    node.inner = _join(node, node.inner, indices)
    return node


def _indices(node: Loop) -> list[Index]:
    return [node.index, *(e for s in node.trace for e in s.args if isinstance(e, Expr))]


def _cut(node: Loop, loops: list[Symbol]) -> list[Symbol]:
    """`loops`, with two in the place of one whose variable the indices divide: rows of heads, say,
    that are read as one dimension. A compiler makes vectors of the two, and not of a quotient."""
    found: list[Symbol] = []
    pending = list(loops)
    while pending:
        loop = pending.pop(0)
        parts = _parts_of(node, loop)
        if parts is None:
            found.append(loop)
        else:
            pending[:0] = parts
    return found


def _parts_of(node: Loop, loop: Symbol) -> list[Symbol] | None:
    """Two loops for one, in which no index divides what both count; the trace is rewritten."""
    assert loop.extent is not None
    indices = _indices(node)
    divisors = {d for e in indices for d in _divisors(e, loop)}
    for d in sorted(divisors, key=size_hint, reverse=True):
        count = floordiv(loop.extent, d)
        if count in (0, 1) or count * d != loop.extent:
            continue
        whole, rest = Symbol("j", count), Symbol("j", d)
        values: dict[Symbol, Index] = {loop: var(whole) * d + var(rest)}
        if not any(_divides_both(substitute(e, values), {whole, rest}) for e in indices):
            rewrite(node, values)
            return [whole, rest]
    return None


def _divisions(e: Index) -> Iterator[Division]:
    if isinstance(e, Expr):
        for atom in {a for monomial in e.terms for a in monomial if isinstance(a, Division)}:
            yield atom
            yield from _divisions(atom.numerator)
            yield from _divisions(atom.divisor)


def _divisors(e: Index, loop: Symbol) -> Iterator[Index]:
    """What an index divides a loop's variable by."""
    return (found.divisor for found in _divisions(e) if found.numerator == var(loop))


def _divides_both(e: Index, loops: set[Symbol]) -> bool:
    return any(loops <= symbols(found.numerator) for found in _divisions(e))


def _join(node: Loop, loops: list[Symbol], indices: list[Index]) -> list[Symbol]:
    """`loops` with neighbours joined. Joined loops count on in the last one's variable.

    Two neighbours join where in every index the outer's coefficient is the inner's times the
    inner's extent. The traces are rewritten, since they name the old variables.
    """
    if len(loops) < 2:
        return loops
    steps = [strides(e) for e in indices]
    blocked: set[Symbol] = set()
    for e, affine in zip(indices, steps, strict=True):
        if affine is None:
            blocked |= symbols(e)
    runs: list[list[Symbol]] = [[loops[0]]]
    for s in loops[1:]:
        a = runs[-1][-1]
        assert s.extent is not None
        if (
            a not in blocked
            and s not in blocked
            and all(k.get(a, 0) == k.get(s, 0) * s.extent for k in steps if k is not None)
        ):
            runs[-1].append(s)
        else:
            runs.append([s])
    if all(len(r) == 1 for r in runs):
        return loops
    values: dict[Symbol, Index] = {}
    joined = []
    for run in runs:
        if len(run) == 1:
            joined.append(run[0])
            continue
        whole = Symbol("j", product(s.extent for s in run))
        joined.append(whole)
        for s in run[:-1]:
            values[s] = 0
        values[run[-1]] = var(whole)
    rewrite(node, values)
    return joined


def collapse(node: Loop, most: int | None) -> Loop:
    """The node with the outermost loops joined until there are `most`, two at least (in place).
    Their variables become quotients and remainders."""
    while most is not None and len(node.outer) + len(node.inner) > most:
        loops = node.outer if len(node.outer) > 1 else node.inner
        first, second = loops[:2]
        assert first.extent is not None and second.extent is not None
        whole = Symbol("j", first.extent * second.extent)
        loops[:2] = [whole]
        quotient, rest = floordiv(var(whole), second.extent), mod(var(whole), second.extent)
        rewrite(node, {first: quotient, second: rest})
    return node


def rewrite(node: Loop, values: dict[Symbol, Index]) -> None:
    """Replaces loop variables in a node's trace, keeping the scalars' identities."""
    for s in node.trace:
        if any(isinstance(a, Expr) for a in s.args):
            s.args = tuple(substitute(a, values) if isinstance(a, Expr) else a for a in s.args)
    node.index = substitute(node.index, values)


def refine(
    a: list[Symbol], b: list[Symbol], mine: Index, other: Index
) -> tuple[dict[Symbol, Index], dict[Symbol, Index]] | None:
    """The loops of which both lists are joins, found from one buffer's index in either.

    Both indices have to be affine and move with every loop. Walking from the smallest stride,
    equal strides are one loop; where extents differ the longer loop is split.
    """
    left, right = _sorted_loops(a, mine), _sorted_loops(b, other)
    if left is None or right is None:
        return None
    x: dict[Symbol, Index] = dict.fromkeys(a, 0)
    y: dict[Symbol, Index] = dict.fromkeys(b, 0)
    i = j = 0
    multiple_x: Index = 1
    multiple_y: Index = 1
    while i < len(left) and j < len(right):
        (k, n, s), (q, m, t) = left[i], right[j]
        if k != q:
            return None
        extent = n if n == m else _common(n, m)
        if extent is None:
            return None
        whole = n == m and multiple_x == 1 and multiple_y == 1
        shared = s if whole else Symbol("j", extent)
        x[s] = x[s] + var(shared) * multiple_x
        y[t] = y[t] + var(shared) * multiple_y
        if n == extent:
            i, multiple_x = i + 1, 1
        else:
            left[i] = (k * extent, n // extent, s)
            multiple_x = multiple_x * extent
        if m == extent:
            j, multiple_y = j + 1, 1
        else:
            right[j] = (q * extent, m // extent, t)
            multiple_y = multiple_y * extent
    return (x, y) if i == len(left) and j == len(right) else None


def _common(n: Index, m: Index) -> Index | None:
    if isinstance(n, int) and isinstance(m, int):
        low, high = min(n, m), max(n, m)
        return low if high % low == 0 else None
    for a, b in ((n, m), (m, n)):
        if (b // a) * a == b:
            return a
    return None


def _sorted_loops(loops: list[Symbol], index: Index) -> list[tuple[Index, Index, Symbol]] | None:
    steps = strides(index)
    if steps is None:
        return None
    found = []
    for s in loops:
        k = steps.get(s, 0)
        if k == 0 or s.extent is None:
            return None
        found.append((k, s.extent, s))
    return sorted(found, key=lambda t: size_hint(t[0]))
