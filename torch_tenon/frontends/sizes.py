"""Numbers of a graph that are known only when it runs: PyTorch's symbolic integers and floats."""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch.fx.experimental.symbolic_shapes import guard_or_false, statically_known_true
from torch.utils._sympy.printers import PythonPrinter

from torch_tenon.ir.index import Index, Symbol, nonnegative, var
from torch_tenon.ir.index import symbols as symbols_in
from torch_tenon.ir.program import Program
from torch_tenon.ir.symbolic import index_of_sympy, number_of_sympy
from torch_tenon.ir.values import Layout, Value, set_hint, size_hint
from torch_tenon.ops.lowerings.table import CannotLower, given_number, has_narrow_numbers

_TYPICAL = 64  # of a number that has no hint
_LEAST = -(1 << 63)


@dataclass(frozen=True)
class SizeSource:
    """Where a run-time size comes from: argument number `argument`, or its dimension `dim`, or,
    with neither, the value of `expression` in the sizes before it."""

    expression: Any
    argument: int = -1
    dim: int = -1


class SizeTable:
    """Run-time numbers of a graph: PyTorch's symbolic integers as index expressions, its symbolic
    floats as inputs of the program that hold one number each."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.known: dict[sympy.Expr, Index] = {}
        self.sources: list[SizeSource] = []
        self.given: dict[sympy.Expr, int] = {}  # floats that are arguments
        self.floats: dict[sympy.Expr, Value] = {}  # in the order of their inputs

    def define(self, size: torch.SymInt, source: SizeSource) -> None:
        """Enters a number that comes with the arguments. Raises CannotLower for one that only
        stands for the lengths of a nested tensor's parts."""
        if source.expression in self.known or not isinstance(source.expression, sympy.Symbol):
            return
        hint = size.node.hint
        if isinstance(hint, torch.SymInt):
            raise CannotLower("the lengths of a nested tensor's parts are no number")
        hint = _TYPICAL if hint is None else int(hint)
        self._add(source, size.node.shape_env, hint)
        if statically_known_true(size < 0):
            # An index knows how little a number may be, not how much.
            opposite = SizeSource(-source.expression)
            self.known[source.expression] = -self._add(opposite, size.node.shape_env, -hint)

    def define_by_multiple(self, size: torch.SymInt, source: SizeSource) -> None:
        """Enters a size of which the arguments have a multiple alone, and a number more: `n` of
        `2 * n + 1`. Those that they have themselves are entered before. The symbol says by what
        the program gets it."""
        e = source.expression
        symbols = list(e.free_symbols)
        if len(symbols) != 1 or symbols[0] in self.known or not e.is_polynomial(*symbols):
            return
        factor, *rest = (int(c) for c in sympy.Poly(e, *symbols).all_coeffs())
        if len(rest) != 1 or factor < 0:
            return
        hint = _TYPICAL if size.node.hint is None else (int(size.node.hint) - rest[0]) // factor
        made = self._add(replace(source, expression=symbols[0]), size.node.shape_env, hint)
        (symbol,) = symbols_in(made)
        symbol.given_as = (factor, rest[0])

    def _add(self, source: SizeSource, environment: Any, hint: int) -> Index:
        bounds = environment.bound_sympy(source.expression)
        made = self._new(source, int(bounds.lower) if bounds.lower.is_Integer else _LEAST, hint)
        (symbol,) = symbols_in(made)
        symbol.greatest = int(bounds.upper) if bounds.upper.is_Integer else None
        self.known[source.expression] = made
        return made

    def _new(self, source: SizeSource, lower: int, hint: int) -> Index:
        symbol = Symbol(f"n{len(self.sources)}", None, lower)
        set_hint(symbol, hint)
        self.program.sizes.append(symbol)
        self.sources.append(source)
        return var(symbol)

    def end_of_range(self, start: Any, end: Any) -> Index:
        """The end of a range of numbers, as an index that is seen to lie above the start. Of
        `m - n` an index does not know what the graph's guards say, that `n < m`: the distance
        becomes a size of its own, computed before the run."""
        first, last = self.index(start), self.index(end)
        count = end - start
        if nonnegative(last - first - 1) or not guard_or_false(count >= 1):
            return last
        return first + self._new(SizeSource(count.node.expr), 1, size_hint(last - first))

    def number(self, x: torch.SymFloat) -> Value:
        """A symbolic float as a number of the program; a standalone one computes it."""
        e = x.node.expr
        if self.program.standalone:
            return number_of_sympy(e, lambda part: self._convert(part, x.node.shape_env))
        if e not in self.floats:
            for s in e.free_symbols - self.given.keys():
                self._convert(s, x.node.shape_env)
            stored = self.program.input(torch.float64, Layout((), ()), "number")
            narrow = None
            if has_narrow_numbers():
                narrow = self.program.input(torch.float32, Layout((), ()), "number")
            number = given_number(stored, narrow)
            number.is_number = True
            self.floats[e] = number
        return self.floats[e]

    def index(self, x: Any) -> Index:
        """A number, symbolic or not, as an index."""
        if isinstance(x, torch.SymInt):
            return self._convert(x.node.expr, x.node.shape_env)
        return int(x)

    def _convert(self, e: sympy.Expr, environment: Any) -> Index:
        def otherwise(e: sympy.Expr) -> Index:
            if isinstance(e, sympy.Symbol):
                raise CannotLower(self._of_data(e))
            # It (a maximum, say) becomes a size of its own, computed before the run.
            return self._add(SizeSource(e), environment, _TYPICAL)

        return index_of_sympy(e, self.known, otherwise)

    def _of_data(self, e: sympy.Symbol) -> str:
        """Why there is no plan that needs this number, and what to do."""
        why = f"the number {e} is computed of data while the graph runs, and needed before"
        if self.program.standalone:
            return f"{why}: compute with the tensor that has it, or give it as an argument"
        names = "capture_scalar_outputs and capture_dynamic_output_shape_ops"
        return f"{why}: with {names} of torch._dynamo.config False, the graph is split there"


def evaluator(
    sources: Sequence[SizeSource],
    given: dict[sympy.Expr, int],
    floats: Sequence[sympy.Expr],
) -> Callable[[Sequence[Any]], tuple[list[int], list[float]]]:
    """What computes the values of sizes and of floats, in their order, from a graph's arguments."""
    printer = PythonPrinter()
    lines = ["def values(args):", *(f" {e} = float(args[{k}])" for e, k in given.items())]
    for k, s in enumerate(sources):
        if s.dim >= 0:
            value = f"args[{s.argument}].shape[{s.dim}]"
        else:
            value = f"args[{s.argument}]" if s.argument >= 0 else printer.doprint(s.expression)
        lines.append(f" size{k} = int({value})")
        if isinstance(s.expression, sympy.Symbol):
            lines.append(f" {s.expression} = size{k}")
    sizes = ", ".join(f"size{k}" for k, _ in enumerate(sources))
    numbers = ", ".join(f"float({printer.doprint(e)})" for e in floats)
    lines.append(f" return [{sizes}], [{numbers}]")
    scope: dict[str, Any] = {"math": math, "torch": torch, "__builtins__": builtins}
    exec("\n".join(lines), scope)
    found: Callable[[Sequence[Any]], tuple[list[int], list[float]]] = scope["values"]
    return found
