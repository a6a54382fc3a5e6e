"""Sizes of any value as PyTorch's symbolic integers, and back: for code of PyTorch's own that
computes with sizes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import sympy  # type: ignore[import-untyped]
import torch
from torch.utils._sympy.functions import IntTrueDiv, ToFloat

from torch_tenon.ir.index import (
    Div,
    Division,
    Expr,
    Index,
    Symbol,
    floordiv,
    mod,
    nonnegative,
    product,
)
from torch_tenon.ir.scalar import Scalar, ops
from torch_tenon.ir.values import Lazy, Value, size_hint

if TYPE_CHECKING:
    from torch._guards import SLoc
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

# PyTorch's functions of numbers that are not whole, and what computes them.
_REAL = {
    "Add": "add",
    "Mul": "mul",
    "IntTrueDiv": "div",
    "FloatTrueDiv": "div",
    "FloatPow": "pow",
    "Max": "maximum",
    "Min": "minimum",
    "OpaqueUnaryFn_sqrt": "sqrt",
}

_EXACT = 1 << 20  # factors up to it leave a float room for sizes up to 2^33


def index_of_sympy(
    e: sympy.Expr, known: dict[sympy.Expr, Index], otherwise: Callable[[sympy.Expr], Index]
) -> Index:
    """An expression as an index; `known` has its symbols, and keeps what was found. What no index
    can say is asked of `otherwise`."""
    found = known.get(e)
    if found is None:
        found = known[e] = _compute(e, known, otherwise)
    return found


def _compute(
    e: sympy.Expr, known: dict[sympy.Expr, Index], otherwise: Callable[[sympy.Expr], Index]
) -> Index:
    if e.is_Integer:
        return int(e)
    if isinstance(e, sympy.Symbol):
        return otherwise(e)
    name = type(e).__name__
    if name in ("TruncToInt", "FloorToInt", "CeilToInt"):
        return _whole_part(e, known, otherwise)
    args = [index_of_sympy(a, known, otherwise) for a in e.args]
    if isinstance(e, sympy.Add):
        total: Index = 0
        for a in args:
            total = total + a
        return total
    if isinstance(e, sympy.Mul):
        return product(args)
    if isinstance(e, sympy.Pow) and e.exp.is_Integer and e.exp > 0:
        return product([args[0]] * int(e.exp))
    # An index divides what is not negative by what is positive.
    if len(args) == 2 and nonnegative(args[1] - 1):
        if name in ("FloorDiv", "CleanDiv") and nonnegative(args[0]):
            return floordiv(*args)
        if name in ("FloorDiv", "CleanDiv") and nonnegative(-args[0]):
            return -floordiv(args[1] - 1 - args[0], args[1])
        if name in ("Mod", "PythonMod") and nonnegative(args[0]):
            return mod(*args)
        if name == "PythonMod" and nonnegative(-args[0]):  # up to the next multiple
            return product([args[1], floordiv(args[1] - 1 - args[0], args[1])]) + args[0]
    if name in ("Max", "Min"):
        sign = 1 if name == "Max" else -1
        for a in args:  # the one that is the greatest, or the least, whatever the sizes
            if all(nonnegative(sign * (a - b)) for b in args):
                return a
    return otherwise(e)


def _whole_part(
    e: sympy.Expr, known: dict[sympy.Expr, Index], otherwise: Callable[[sympy.Expr], Index]
) -> Index:
    """The whole number next to a fraction of sizes, as to `0.5 * n`, where floats are exact."""
    fraction = e.args[0]
    if isinstance(fraction, IntTrueDiv) and fraction.args[1].is_Integer:
        of_one, divisor = fraction.args
    else:
        real = sympy.expand(fraction.replace(ToFloat, lambda n: n))
        exact = real.xreplace({x: sympy.Rational(x) for x in real.atoms(sympy.Float)})
        if not exact.is_polynomial(*exact.free_symbols):
            return otherwise(e)
        of_one, divisor = sympy.together(exact).as_numer_denom()
    numbers = [divisor, *of_one.atoms(sympy.Integer)]
    if not divisor.is_Integer or divisor < 1 or any(abs(n) > _EXACT for n in numbers):
        return otherwise(e)
    total = index_of_sympy(of_one, known, otherwise)
    up = int(divisor) - 1 if type(e).__name__ == "CeilToInt" else 0
    return floordiv(total + up, int(divisor)) if nonnegative(total) else otherwise(e)


def number_of_sympy(e: sympy.Expr, index: Callable[[sympy.Expr], Index]) -> Value:
    """A number that is computed of sizes, in the dtype that Python computes in. `index` gives what
    is whole of it."""
    number = Lazy((), torch.float64, _body(e, index), cost=1)
    number.is_number = True
    return number


def _body(e: sympy.Expr, index: Callable[[sympy.Expr], Index]) -> Callable[[Any], Scalar]:
    if e.is_Number:
        return lambda _: ops.constant(float(e), torch.float64)
    name = type(e).__name__
    if name == "ToFloat":
        return _body(e.args[0], index)
    if name in _REAL:
        bodies = [_body(a, index) for a in e.args]
        compute = getattr(ops, _REAL[name])
        if len(bodies) == 1:
            return lambda at: compute(bodies[0](at))
        return lambda at: functools.reduce(compute, [body(at) for body in bodies])
    whole = index(e)
    return lambda _: ops.to(ops.index(whole), torch.float64)


class UndecidedSize(Exception):
    """Something depends on a size whose value is not known yet; the text says on what."""


@functools.cache
def _environment() -> Callable[[dict[sympy.Expr, Index]], ShapeEnv]:
    from torch._guards import SLoc
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    class Environment(ShapeEnv):
        """PyTorch's, but it does not look for the user's line that a size comes from: it loads
        Dynamo, Inductor and export to tell which lines are none. And it knows what indices know of
        products: with b >= 2, that a * b is not a."""

        def __init__(self, known: dict[sympy.Expr, Index]) -> None:
            super().__init__(duck_shape=False)
            self.known = known

        def _get_stack_summary(
            self, is_debug: bool = False, framework_loc: str | None = None
        ) -> tuple[SLoc, str]:
            return SLoc(framework_loc, None), ""

        # With what PyTorch calls it has, to clear its cache: it learns of a bound.
        @functools.wraps(ShapeEnv._maybe_evaluate_static)
        def _maybe_evaluate_static(  # type: ignore[override]
            self, expr: sympy.Basic, **how: Any
        ) -> sympy.Basic | None:
            found = super()._maybe_evaluate_static(expr, **how)
            return _decided(expr, self.known) if found is None else found

    return Environment


class SymbolicSizes:
    """A program's sizes of any value, for tensors without memory that PyTorch's code works on."""

    def __init__(self) -> None:
        from torch._subclasses.fake_tensor import FakeTensorMode

        from torch_tenon.frontends import dynamo_waits

        dynamo_waits.load_parts()
        self.symbols: dict[Symbol, sympy.Symbol] = {}
        self.known: dict[sympy.Expr, Index] = {}
        self.environment = _environment()(self.known)
        self.mode = FakeTensorMode(shape_env=self.environment, allow_non_fake_inputs=True)

    def tensor(self, sizes: Any, strides: Any, dtype: torch.dtype) -> torch.Tensor:
        """A tensor without memory; sizes and strides are indices."""
        with self.mode:
            return torch.empty_strided(
                [self.integer(n) for n in sizes],
                [self.integer(k) for k in strides],
                dtype=dtype,
                device="meta",
            )

    def integer(self, e: Index) -> Any:
        """An index as PyTorch's code takes it."""
        if not isinstance(e, Expr):
            return e
        return self.environment.create_symintnode(self._sympy(e), hint=size_hint(e))

    def index(self, x: Any) -> Any:
        """What PyTorch's code gave as an index, or as a value where it is no whole number; what is
        no symbolic number stays as it is.

        Raises UndecidedSize for what is not known yet, and once PyTorch's code took a decision that
        holds for some sizes alone.
        """
        if self.environment.guards:
            raise UndecidedSize(f"it depends on {self.environment.guards[0].expr}")
        if isinstance(x, torch.SymBool):
            raise UndecidedSize(f"it computes with {x}")
        if isinstance(x, torch.SymFloat):
            return number_of_sympy(x.node.expr, self._index)
        if not isinstance(x, torch.SymInt):
            return x
        return self._index(x.node.expr)

    def _index(self, e: sympy.Expr) -> Index:
        return index_of_sympy(e, self.known, _undecided)

    def _sympy(self, e: Index) -> Any:
        if not isinstance(e, Expr):
            return e
        total: Any = 0
        for monomial, k in e.terms.items():
            term: Any = k
            for atom in monomial:
                term = term * self._sympy_of_atom(atom)
            total = total + term
        return total

    def _sympy_of_atom(self, atom: Any) -> Any:
        from torch.utils._sympy.functions import FloorDiv, PythonMod

        if isinstance(atom, Symbol):
            return self._symbol(atom)
        assert isinstance(atom, Division)
        function = FloorDiv if isinstance(atom, Div) else PythonMod
        return function(self._sympy(atom.numerator), self._sympy(atom.divisor))

    def _symbol(self, symbol: Symbol) -> sympy.Symbol:
        from torch._dynamo.source import ConstantSource
        from torch.fx.experimental.symbolic_shapes import DimDynamic, StrictMinMaxConstraint
        from torch.utils._sympy.numbers import int_oo
        from torch.utils._sympy.value_ranges import ValueRanges

        found = self.symbols.get(symbol)
        if found is None:
            if symbol.extent is not None or symbol.lower < 0:
                raise UndecidedSize(f"{symbol} is no size")
            greatest = int_oo if symbol.greatest is None else symbol.greatest
            bounds = ValueRanges(symbol.lower, greatest)
            if bounds.is_singleton():
                raise UndecidedSize(f"{symbol} is one number alone")
            hint = max(symbol.hint, symbol.lower)
            is_never_few = symbol.lower >= 2  # what PyTorch takes for granted of a size
            found = self.environment.create_symbol(
                hint if symbol.greatest is None else min(hint, symbol.greatest),
                ConstantSource(symbol.name),
                dynamic_dim=DimDynamic.DYNAMIC,
                constraint_dim=StrictMinMaxConstraint(vr=bounds, warn_only=False),
                positive=is_never_few or None,
                do_not_specialize_zero_one=not is_never_few,
            )
            self.symbols[symbol] = found
            self.known[found] = Expr({(symbol,): 1})
        return found


def _decided(condition: sympy.Basic, known: dict[sympy.Expr, Index]) -> sympy.Basic | None:
    """Whether a comparison of two sizes holds, or what number a size is; None where bounds do not
    tell."""
    compares = isinstance(condition, sympy.core.relational.Relational)
    if not compares and isinstance(condition, sympy.logic.boolalg.Boolean | sympy.Symbol):
        return None
    try:
        if not compares:
            found = index_of_sympy(condition, known, _undecided)
            return sympy.Integer(found) if isinstance(found, int) else None
        left, right = (index_of_sympy(e, known, _undecided) for e in condition.args)
    except UndecidedSize:
        return None
    above, below = _surely(left - right - 1), _surely(right - left - 1)
    if above or below:
        # The two are not equal, and this tells every comparison of them.
        return sympy.true if condition.func(1 if above else -1, 0) else sympy.false
    not_less, not_greater = _surely(left - right), _surely(right - left)
    if not_less and not_greater:
        return sympy.true if condition.func(0, 0) else sympy.false
    if isinstance(condition, sympy.Ge) and not_less:
        return sympy.true
    return sympy.true if isinstance(condition, sympy.Le) and not_greater else None


def _surely(e: Index) -> bool:
    """Whether `e >= 0` is certain. A division by a number is between the fraction and less than one
    below it: `n - n // 2` is not less than `n / 2`."""
    if nonnegative(e):
        return True
    for monomial, k in e.terms.items() if isinstance(e, Expr) else ():
        atom = monomial[0] if len(monomial) == 1 else None
        if isinstance(atom, Div) and isinstance(atom.divisor, int):
            d, rest = atom.divisor, e - product([k, Expr({monomial: 1})])
            least = atom.numerator if k < 0 else atom.numerator - (d - 1)
            return _surely(rest * d + least * k)
    return False


def _undecided(e: sympy.Expr) -> Index:
    raise UndecidedSize(f"no index is {e}")
