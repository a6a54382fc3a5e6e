"""Integer index expressions: sums of products of symbols, floor divisions and remainders.

An `Index` is an `int` or an `Expr`; an `Expr` is never constant, so a size that is known stays a
plain integer and costs nothing. Expressions are canonical by construction: two that are equal as
polynomials over the same atoms compare equal, and a division or remainder that the symbols'
ranges decide is never built.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Union

from torch_tenon.ir.interned import Interned

if TYPE_CHECKING:
    from torch_tenon.ir.scalar import Scalar

Index = Union[int, "Expr"]
_serials = itertools.count()


class Atom:
    """What a monomial is made of: a symbol, a floor division or a remainder."""

    __slots__ = ("__weakref__", "serial")

    def __init__(self) -> None:
        self.serial = next(_serials)


class Symbol(Atom):
    """A loop variable, an indirect index (both in `[0, extent)`) or a run-time size.

    A run-time size has `extent` None and is at least `lower`, and `greatest` at most, if that is
    known; `hint` is what it may be. A run is given it times a factor, and an offset (`given_as`).
    An indirect index names the scalar that computes it.
    """

    __slots__ = ("extent", "given_as", "greatest", "hint", "lower", "name", "scalar")

    def __init__(
        self, name: str, extent: Index | None = None, lower: int = 0, scalar: Scalar | None = None
    ) -> None:
        super().__init__()
        self.name, self.extent, self.lower, self.scalar = name, extent, lower, scalar
        self.hint = 64
        self.given_as = (1, 0)
        self.greatest: int | None = None

    def __repr__(self) -> str:
        return self.name


class Division(Atom):
    """What is left of a division of one expression by another."""

    __slots__ = ("divisor", "numerator")
    sign: ClassVar[str]

    def __init__(self, numerator: Index, divisor: Index) -> None:
        super().__init__()
        self.numerator, self.divisor = numerator, divisor

    def __repr__(self) -> str:
        return f"(({self.numerator}) {self.sign} ({self.divisor}))"


class Div(Division):
    """`floor(numerator / divisor)`."""

    __slots__ = ()
    sign = "//"


class Mod(Division):
    """`numerator - divisor * floor(numerator / divisor)`."""

    __slots__ = ()
    sign = "%"


Monomial = tuple[Atom, ...]
# Divisions and remainders that some expression has: equal ones are one atom.
_interned: Interned[tuple[str, Index, Index], Atom] = Interned()


def _serial(atom: Atom) -> int:
    return atom.serial


class Expr:
    """A polynomial with integer coefficients: `terms` maps a monomial to its coefficient.

    The empty monomial is the constant. Monomials are sorted by their atoms' serials.
    """

    __slots__ = ("_hash", "_known", "_linear", "terms")

    def __init__(self, terms: dict[Monomial, int]) -> None:
        self.terms = terms
        self._hash: int | None = None
        self._linear: dict[Symbol, Index] | None = None
        self._known = False

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(frozenset(self.terms.items()))
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Expr) and self.terms == other.terms)

    def __add__(self, other: Index) -> Index:
        terms = dict(self.terms)
        if isinstance(other, Expr):
            for monomial, k in other.terms.items():
                total = terms.get(monomial, 0) + k
                if total:
                    terms[monomial] = total
                else:
                    del terms[monomial]
        elif other:
            total = terms.get((), 0) + other
            if total:
                terms[()] = total
            else:
                del terms[()]
        return _make(terms)

    __radd__ = __add__

    def __neg__(self) -> Index:
        return Expr({m: -k for m, k in self.terms.items()})

    def __sub__(self, other: Index) -> Index:
        return self + (-other)

    def __rsub__(self, other: Index) -> Index:
        return -self + other

    def __mul__(self, other: Index) -> Index:
        if not isinstance(other, Expr):
            if other == 0:
                return 0
            return self if other == 1 else Expr({m: k * other for m, k in self.terms.items()})
        terms: dict[Monomial, int] = {}
        for a, j in self.terms.items():
            for b, k in other.terms.items():
                monomial = tuple(sorted(a + b, key=_serial)) if a and b else a or b
                terms[monomial] = terms.get(monomial, 0) + j * k
        return _make({m: k for m, k in terms.items() if k})

    __rmul__ = __mul__

    def __floordiv__(self, other: Index) -> Index:
        return floordiv(self, other)

    def __rfloordiv__(self, other: Index) -> Index:
        return floordiv(other, self)

    def __mod__(self, other: Index) -> Index:
        return mod(self, other)

    def __rmod__(self, other: Index) -> Index:
        return mod(other, self)

    def __repr__(self) -> str:
        parts = []
        for monomial, k in self.terms.items():
            factors = [repr(a) for a in monomial]
            if k != 1 or not factors:
                factors.insert(0, str(k))
            parts.append("*".join(factors))
        return " + ".join(parts)


def _make(terms: dict[Monomial, int]) -> Index:
    """The index of `terms` (no zero coefficients): an int when constant."""
    if not terms:
        return 0
    if len(terms) == 1 and () in terms:
        return terms[()]
    if len(terms) > 1:
        for monomial, k in terms.items():
            if len(monomial) == 1 and isinstance(monomial[0], Mod):
                joined = _join_mod(terms, monomial[0], k)
                if joined is not None:
                    return joined
    return Expr(terms)


def _join_mod(terms: dict[Monomial, int], atom: Mod, k: int) -> Index | None:
    """`k*d*(x // d) + k*(x % d)` is `k*x`: the sum so simplified, or None."""
    pair = _interned.get(("div", atom.numerator, atom.divisor))
    if pair is None:
        return None
    scaled = k * var(pair) * atom.divisor
    assert isinstance(scaled, Expr)
    (monomial, coefficient) = next(iter(scaled.terms.items()))
    if len(scaled.terms) != 1 or terms.get(monomial) != coefficient:
        return None
    rest = {m: c for m, c in terms.items() if m != monomial and m != (atom,)}
    return _make(rest) + k * atom.numerator


def var(atom: Atom) -> Expr:
    """The expression that is just `atom`."""
    return Expr({(atom,): 1})


def _atom(kind: str, numerator: Index, divisor: Index) -> Expr:
    key = (kind, numerator, divisor)
    atom = _interned.get(key)
    if atom is None:
        atom = _interned.enter(key, (Div if kind == "div" else Mod)(numerator, divisor))
    return var(atom)


def _divide(e: Expr, d: Index) -> tuple[Index, Index]:
    """`(q, r)` with `e == q*d + r`, where q collects the terms that d divides."""
    quotient: dict[Monomial, int] = {}
    rest: dict[Monomial, int] = {}
    if isinstance(d, int):
        for monomial, k in e.terms.items():
            q, r = divmod(k, d)
            if monomial and r:  # keep a coefficient whole: half of it would not simplify
                q, r = 0, k
            if q:
                quotient[monomial] = q
            if r:
                rest[monomial] = r
    elif len(d.terms) == 1:
        ((factors, c),) = d.terms.items()
        for monomial, k in e.terms.items():
            remaining = _without(monomial, factors) if k % c == 0 else None
            if remaining is None:
                rest[monomial] = k
            else:
                quotient[remaining] = k // c
    else:
        return 0, e
    return _make(quotient), _make(rest)


def _without(monomial: Monomial, factors: Monomial) -> Monomial | None:
    left = list(monomial)
    for f in factors:
        if f not in left:
            return None
        left.remove(f)
    return tuple(left)


def floordiv(e: Index, d: Index) -> Index:
    """`floor(e / d)` for positive `d`."""
    if isinstance(e, int):
        if isinstance(d, int):
            return e // d
        return 0 if e == 0 or (less(e, d) and e >= 0) else _atom("div", e, d)
    if isinstance(d, int) and d == 1:
        return e
    if e == d:
        return 1
    q, r = _divide(e, d)
    if less(r, d) and nonnegative(r):
        return q
    if _is_one_too_many(r, d):
        return q - 1
    if isinstance(r, int):
        return q + _atom("div", r, d)
    if isinstance(d, int):
        g = math.gcd(d, *(k for m, k in r.terms.items() if m))
        if g > 1:
            terms = {m: k // g for m, k in r.terms.items()}
            return q + floordiv(_make({m: k for m, k in terms.items() if k}), d // g)
    inner = _only_atom(r)
    if isinstance(inner, Div):
        return q + floordiv(inner.numerator, inner.divisor * d)
    if (
        isinstance(inner, Mod)
        and isinstance(d, int)
        and isinstance(inner.divisor, int)
        and inner.divisor % d == 0
    ):
        return q + mod(floordiv(inner.numerator, d), inner.divisor // d)
    return q + _atom("div", r, d)


def mod(e: Index, d: Index) -> Index:
    """`e - d * floor(e / d)` for positive `d`."""
    if isinstance(e, int):
        if isinstance(d, int):
            return e % d
        return e if e == 0 or (less(e, d) and e >= 0) else _atom("mod", e, d)
    if e == d or (isinstance(d, int) and d == 1):
        return 0
    _, r = _divide(e, d)
    if less(r, d) and nonnegative(r):
        return r
    if _is_one_too_many(r, d):
        return r + d
    if isinstance(r, int):
        return mod(r, d)
    inner = _only_atom(r)
    if (
        isinstance(inner, Mod)
        and isinstance(d, int)
        and isinstance(inner.divisor, int)
        and inner.divisor % d == 0
    ):
        return mod(inner.numerator, d)
    return _atom("mod", r, d)


def _is_one_too_many(rest: Index, d: Index) -> bool:
    """Whether a division left less than nothing, and no more than the divisor: `n*m + n - 1` by n
    leaves -1 after `m + 1`."""
    return nonnegative(-rest - 1) and nonnegative(d + rest)


def _only_atom(e: Expr) -> Atom | None:
    if len(e.terms) == 1:
        ((monomial, k),) = e.terms.items()
        if k == 1 and len(monomial) == 1:
            return monomial[0]
    return None


def bounds(e: Index) -> tuple[int | None, int | None]:
    """The least and greatest value of `e` as integers, None where unbounded or unknown."""
    if isinstance(e, int):
        return e, e
    low: int | None = 0
    high: int | None = 0
    for monomial, k in e.terms.items():
        a: int | None = 1
        b: int | None = 1
        for atom in monomial:
            x, y = _atom_bounds(atom)
            if x is None or x < 0 or a is None:
                a = b = None
                break
            a, b = a * x, None if y is None or b is None else b * y
        if a is None:
            return None, None
        if k < 0:
            a, b = (None if b is None else b), a
        low = None if low is None or a is None else low + k * a
        high = None if high is None or b is None else high + k * b
    return low, high


def _atom_bounds(atom: Atom) -> tuple[int | None, int | None]:
    if isinstance(atom, Symbol):
        if isinstance(atom.extent, int):
            return 0, max(atom.extent - 1, 0)
        return atom.lower, None
    assert isinstance(atom, Division)
    low, high = bounds(atom.numerator)
    if isinstance(atom, Mod):
        top = bounds(atom.divisor)[1]
        return 0, None if top is None else top - 1
    if not isinstance(atom.divisor, int):
        # Dividing by 1 or more takes a number nearer to 0, of a negative one to -1 at most.
        least = None if low is None else min(low, 0)
        return least, None if high is None else max(high, -1)
    return (
        None if low is None else low // atom.divisor,
        None if high is None else high // atom.divisor,
    )


def _is_nonnegative(atom: Atom) -> bool:
    low = _atom_bounds(atom)[0]
    return low is not None and low >= 0


def nonnegative(e: Index) -> bool:
    """Whether `e >= 0` is certain."""
    if isinstance(e, int):
        return e >= 0
    low = bounds(e)[0]
    return low >= 0 if low is not None else _is_nonnegative_as_products(e)


def _is_nonnegative_as_products(e: Expr) -> bool:
    """The same where `bounds` says nothing, as of `a*b - a`. Each atom is its least and something
    that is not negative: multiplied out, no term may be negative."""
    if not any(len(monomial) > 1 for monomial in e.terms):
        return False
    above: dict[Atom, Index] = {}
    total: Index = 0
    for monomial, k in e.terms.items():
        term: Index = k
        for atom in monomial:
            if atom not in above:
                low = _atom_bounds(atom)[0]
                if low is None or low < 0:
                    return False
                above[atom] = low + var(Symbol("", None))
            term = term * above[atom]
        total = total + term
    return total >= 0 if isinstance(total, int) else min(total.terms.values()) >= 0


def less(e: Index, d: Index) -> bool:
    """Whether `e < d` is certain."""
    if isinstance(d, int):
        high = bounds(e)[1]
        return high is not None and high < d
    return nonnegative(d - 1 - upper(e))


def upper(e: Index) -> Index:
    """A bound of `e` from above in run-time sizes: loop variables at their last value."""
    if isinstance(e, int):
        return e
    total: Index = 0
    for monomial, k in e.terms.items():
        term: Index = k
        signed = not all(_is_nonnegative(atom) for atom in monomial)
        for atom in monomial:
            if signed:  # a factor at its greatest may make the product least
                term = term * var(atom)
            elif isinstance(atom, Symbol) and atom.extent is not None:
                term = term * (atom.extent - 1) if k > 0 else 0
            elif isinstance(atom, Mod) and k > 0:
                term = term * (atom.divisor - 1)
            elif k < 0 and not isinstance(atom, Symbol):
                term = 0
            else:
                term = term * var(atom)
        total = total + term
    return total


def substitute(e: Index, values: Mapping[Any, Index]) -> Index:
    """`e` with each symbol, division and remainder in `values` replaced."""
    if isinstance(e, int):
        return e
    total: Index = 0
    plain: dict[Monomial, int] = {}
    for monomial, k in e.terms.items():
        term: Index = k
        changed = False
        for atom in monomial:
            new = _substitute_atom(atom, values)
            changed = changed or new is not None
            term = term * (var(atom) if new is None else new)
        if changed:
            total = total + term
        else:
            plain[monomial] = k
    return total + _make(plain) if plain else total


def _substitute_atom(atom: Atom, values: Mapping[Any, Index]) -> Index | None:
    if isinstance(atom, Symbol) or atom in values:
        return values.get(atom)
    assert isinstance(atom, Division)
    numerator, divisor = substitute(atom.numerator, values), substitute(atom.divisor, values)
    if numerator == atom.numerator and divisor == atom.divisor:
        return None
    return (floordiv if isinstance(atom, Div) else mod)(numerator, divisor)


def symbols(e: Index) -> set[Symbol]:
    """Every symbol that `e` depends on."""
    found: set[Symbol] = set()
    if isinstance(e, Expr):
        for monomial in e.terms:
            for atom in monomial:
                if isinstance(atom, Symbol):
                    found.add(atom)
                else:
                    assert isinstance(atom, Division)
                    found |= symbols(atom.numerator) | symbols(atom.divisor)
    return found


def strides(e: Index) -> dict[Symbol, Index] | None:
    """The coefficient of each loop variable when `e` is affine in all of them, else None.

    An indirect index counts as no loop variable, so it makes the answer None.
    """
    if isinstance(e, int):
        return {}
    if not e._known:
        e._linear, e._known = _strides(e), True
    return e._linear


def _strides(e: Expr) -> dict[Symbol, Index] | None:
    found: dict[Symbol, Index] = {}
    for monomial, k in e.terms.items():
        loops = [a for a in monomial if isinstance(a, Symbol) and a.extent is not None]
        for a in monomial:
            if not isinstance(a, Symbol) and any(s.extent is not None for s in symbols(var(a))):
                return None
        if len(loops) > 1 or (loops and loops[0].scalar is not None):
            return None
        if loops:
            rest = tuple(a for a in monomial if a is not loops[0])
            found[loops[0]] = found.get(loops[0], 0) + _make({rest: k})
    return found


def never_meet(a: Index, b: Index) -> bool:
    """Whether two affine indices over the same loops never name one place, whatever positions they
    are at, as those of a concatenation's parts do. False where that is not seen."""
    steps, apart = strides(a), a - b
    if steps is None or not isinstance(apart, int):
        return False
    loops = []
    for s, k in steps.items():
        if not isinstance(k, int) or not isinstance(s.extent, int):
            return False
        loops.append((abs(k), s.extent - 1))
    return not _may_reach(apart, sorted(loops))


def _may_reach(distance: int, loops: list[tuple[int, int]]) -> bool:
    """Whether steps (length, most of them either way) may add up to a distance."""
    if not loops:
        return distance == 0
    *rest, (length, most) = loops
    slack = sum(k * n for k, n in rest)
    low, high = -((slack - distance) // length), (distance + slack) // length
    if high - low > 1:
        return True  # loops that overlap: not worth a search
    return any(
        _may_reach(distance - n * length, rest) for n in range(low, high + 1) if abs(n) <= most
    )


def evaluate(e: Index, values: Mapping[Any, int]) -> int:
    """The value of `e` with a number for each of its symbols."""
    if isinstance(e, int):
        return e
    total = 0
    for monomial, k in e.terms.items():
        for atom in monomial:
            if isinstance(atom, Symbol):
                k *= values[atom]
            else:
                assert isinstance(atom, Division)
                a, b = evaluate(atom.numerator, values), evaluate(atom.divisor, values)
                k *= a // b if isinstance(atom, Div) else a % b
        total += k
    return total


def product(sizes: Any) -> Index:
    """The product of `sizes`; 1 for none."""
    total: Index = 1
    for s in sizes:
        total = total * s
    return total


def flat_index(index: Any, sizes: Any) -> Index:
    """The row-major position of `index` in an array of `sizes`."""
    total: Index = 0
    for i, n in zip(index, sizes, strict=True):
        total = total * n + i
    return total


def unflatten(position: Index, sizes: Any) -> list[Index]:
    """The inverse of `flat_index`."""
    index: list[Index] = []
    for k, n in reversed(list(enumerate(sizes))):
        if k == 0:
            index.append(0 if n == 1 else position)
        elif n == 0:  # there is no position
            index.append(0)
        else:
            index.append(mod(position, n))
            position = floordiv(position, n)
    return index[::-1]
