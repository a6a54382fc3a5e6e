"""The scalar operations that loop bodies are made of, and the traces that record them.

A loop body is a Python function from an index to calls on this module (`ops.add(x, y)`). Calling it
under a `Trace` records each distinct scalar once; everything that later wants the body (code
generation, dependencies) walks the record, so a body's Python function runs once however often it
is looked at.

Dtype rules, by the letter in `OPS`:
  s  operands share a dtype, and the result has it
  b  operands share a dtype, the result is bool
  f  as s, floating operands only
16-bit floats do not exist here: a load widens them to float32 and a store narrows them. Complex
numbers are only loaded, stored and passed on: what is computed with them is computed with their
parts (`ir/complex_numbers.py`), which `real` and `imag` take apart and `pair` puts together.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

from torch_tenon.ir import complex_numbers
from torch_tenon.ir.dtypes import compute_dtype
from torch_tenon.ir.index import Expr, Index, Symbol, nonnegative, symbols, var

# name: (number of operands, dtype rule, what it computes)
OPS: dict[str, tuple[int, str, str]] = {
    "add": (2, "s", "x + y; or for bool"),
    "sub": (2, "s", "x - y"),
    "mul": (2, "s", "x * y; and for bool"),
    "div": (2, "f", "x / y"),
    "fma": (3, "f", "x * y + z rounded once"),
    "floor_div": (2, "s", "floor(x / y), as Python's //"),
    "trunc_div": (2, "s", "x / y rounded toward zero"),
    "remainder": (2, "s", "x - y * floor(x / y): the sign of y"),
    "fmod": (2, "s", "x - y * trunc(x / y): the sign of x"),
    "neg": (1, "s", "-x"),
    "abs": (1, "s", "|x|"),
    "sign": (1, "s", "-1, 0 or 1; 0 for NaN"),
    "minimum": (2, "s", "the lesser; NaN if either is"),
    "maximum": (2, "s", "the greater; NaN if either is"),
    "fmin": (2, "s", "the lesser; the other if one is NaN"),
    "fmax": (2, "s", "the greater; the other if one is NaN"),
    "pow": (2, "s", "x to the y; integers wrap, and negative y give what is left of the fraction"),
    "sqrt": (1, "f", "square root"),
    "rsqrt": (1, "f", "1 / sqrt(x)"),
    "reciprocal": (1, "f", "1 / x"),
    "exp": (1, "f", "e to the x"),
    "exp2": (1, "f", "2 to the x"),
    "expm1": (1, "f", "exp(x) - 1"),
    "log": (1, "f", "natural logarithm"),
    "log2": (1, "f", "logarithm to base 2"),
    "log10": (1, "f", "logarithm to base 10"),
    "log1p": (1, "f", "log(1 + x)"),
    "sin": (1, "f", "sine"),
    "cos": (1, "f", "cosine"),
    "tan": (1, "f", "tangent"),
    "asin": (1, "f", "inverse sine"),
    "acos": (1, "f", "inverse cosine"),
    "atan": (1, "f", "inverse tangent"),
    "atan2": (2, "f", "angle of the point (y, x), first operand y"),
    "sinh": (1, "f", "hyperbolic sine"),
    "cosh": (1, "f", "hyperbolic cosine"),
    "tanh": (1, "f", "hyperbolic tangent"),
    "asinh": (1, "f", "inverse hyperbolic sine"),
    "acosh": (1, "f", "inverse hyperbolic cosine"),
    "atanh": (1, "f", "inverse hyperbolic tangent"),
    "sigmoid": (1, "f", "1 / (1 + exp(-x))"),
    "erf": (1, "f", "error function"),
    "erfc": (1, "f", "1 - erf(x)"),
    "erfinv": (1, "f", "inverse error function"),
    "lgamma": (1, "f", "log |gamma(x)|"),
    "digamma": (1, "f", "derivative of lgamma"),
    "hypot": (2, "f", "sqrt(x*x + y*y) without overflow"),
    "nextafter": (2, "f", "the next number from x toward y"),
    "copysign": (2, "f", "|x| with the sign of y"),
    "signbit": (1, "b", "whether the sign bit is set"),
    "floor": (1, "f", "greatest integer not above x"),
    "ceil": (1, "f", "least integer not below x"),
    "trunc": (1, "f", "x without its fraction"),
    "round": (1, "f", "nearest integer, halves to even"),
    "round_bf16": (1, "f", "float32 rounded to a bfloat16 number"),
    "round_f16": (1, "f", "float32 rounded to a float16 number"),
    "isnan": (1, "b", "whether x is NaN"),
    "isinf": (1, "b", "whether x is an infinity"),
    "eq": (2, "b", "x == y"),
    "ne": (2, "b", "x != y"),
    "lt": (2, "b", "x < y"),
    "le": (2, "b", "x <= y"),
    "gt": (2, "b", "x > y"),
    "ge": (2, "b", "x >= y"),
    "logical_and": (2, "b", "both; operands bool"),
    "logical_or": (2, "b", "either; operands bool"),
    "logical_not": (1, "b", "not x; operand bool"),
    "gcd": (2, "s", "greatest common divisor; integers"),
    "lcm": (2, "s", "least common multiple; integers"),
    "mantissa": (1, "f", "x as a number of [0.5, 1) in size, times a power of 2"),
    "exponent": (1, "f", "that power; 0 for infinities and NaN"),
    "bitwise_and": (2, "s", "bit by bit and"),
    "bitwise_or": (2, "s", "bit by bit or"),
    "bitwise_xor": (2, "s", "bit by bit exclusive or"),
    "bitwise_not": (1, "s", "bit by bit complement; not for bool"),
    "lshift": (2, "s", "x << y; 0 when y is negative or too large"),
    "rshift": (2, "s", "x >> y with sign; y too large shifts all out"),
    "random_below": (2, "s", "of 64 random bits x, a number in [0, y), y unsigned; int64"),
    "random_exp": (1, "f", "exponential, the same bits wherever it is computed"),
}
# Special functions, for floating operands; those of two take an order or a degree among them.
_SPECIAL = {
    1: "airy_ai bessel_j0 bessel_j1 bessel_y0 bessel_y1 erfcx i0 i0e i1 i1e log_ndtr "
    "modified_bessel_k0 modified_bessel_k1 ndtri scaled_modified_bessel_k0 "
    "scaled_modified_bessel_k1 spherical_bessel_j0",
    2: "chebyshev_polynomial_t chebyshev_polynomial_u chebyshev_polynomial_v "
    "chebyshev_polynomial_w hermite_polynomial_h hermite_polynomial_he igamma igammac "
    "laguerre_polynomial_l legendre_polynomial_p polygamma shifted_chebyshev_polynomial_t "
    "shifted_chebyshev_polynomial_u shifted_chebyshev_polynomial_v "
    "shifted_chebyshev_polynomial_w zeta",
}
SPECIAL = {name: arity for arity, names in _SPECIAL.items() for name in names.split()}
OPS |= {f"special_{name}": (n, "f", name.replace("_", " ")) for name, n in SPECIAL.items()}
# Random numbers, of a seed, an offset and an element (int64), in the dtypes that there are:
# the same bits wherever they are computed, which are those of the core's csrc/ops/random_numbers.
RANDOM_NUMBERS = {
    "random_word": ((torch.int64,), "32 random bits, in [0, 2^32)"),
    "random_bits": ((torch.int64,), "64 random bits"),
    "random_unit": ((torch.float32, torch.float64), "uniform in [0, 1), of 24 or 53 bits"),
    "random_normal": ((torch.float32, torch.float64), "normal, of mean 0 and deviation 1"),
    "random_exponential": ((torch.float32, torch.float64), "of rate 1; in float32 possibly 0"),
    "random_cauchy": ((torch.float32, torch.float64), "Cauchy's, of median 0 and scale 1"),
}
# Recorded by functions of their own, below: these (`random`), constant, index, load, to, bitcast,
# where, check, and of complex numbers pair, real, imag.


class Scalar:
    """One recorded operation: its name, operands (scalars or plain data), result dtype."""

    __slots__ = ("args", "dtype", "number", "op")

    def __init__(self, op: str, args: tuple[Any, ...], dtype: torch.dtype, number: int) -> None:
        self.op, self.args, self.dtype, self.number = op, args, dtype, number

    def __repr__(self) -> str:
        return f"t{self.number}"

    def operands(self) -> Iterator[Scalar]:
        """The scalars that this one is computed from, indirect indices included."""
        for a in self.args:
            if isinstance(a, Scalar):
                yield a
            elif isinstance(a, Expr):
                for s in symbols(a):
                    if s.scalar is not None:
                        yield s.scalar

    def __add__(self, other: Any) -> Scalar:
        return ops.add(self, other)

    def __sub__(self, other: Any) -> Scalar:
        return ops.sub(self, other)

    def __rsub__(self, other: Any) -> Scalar:
        return ops.sub(other, self)

    def __mul__(self, other: Any) -> Scalar:
        return ops.mul(self, other)

    def __truediv__(self, other: Any) -> Scalar:
        return ops.div(self, other)

    def __neg__(self) -> Scalar:
        return ops.neg(self)

    def __and__(self, other: Any) -> Scalar:
        return ops.logical_and(self, other)

    def __or__(self, other: Any) -> Scalar:
        return ops.logical_or(self, other)

    def __invert__(self) -> Scalar:
        return ops.logical_not(self)


class Trace:
    """A record of scalars, each distinct one once.

    `memo` belongs to values that inline themselves: a producer asked twice for the same index
    answers with the same scalar, so a shared subexpression costs nothing. `origins` are the ops of
    those values, in order. `call_index` is the recorded call whose result is being computed: a
    check that is recorded meanwhile is that call's.
    """

    def __init__(self, call_index: int = -1) -> None:
        self.scalars: list[Scalar] = []
        self.memo: dict[Any, Scalar] = {}
        self.origins: dict[str, None] = {}
        self.mask: Scalar | None = None
        self.call_index = call_index
        self.calls: dict[int, None] = {}  # the recorded calls of those values
        self._known: dict[Any, Scalar] = {}
        self._indirect: dict[Any, Symbol] = {}

    def record(self, op: str, args: tuple[Any, ...], dtype: torch.dtype) -> Scalar:
        """The scalar for this operation, recorded now or before."""
        key = (op, args, dtype)
        found = self._known.get(key)
        if found is None:
            found = Scalar(op, args, dtype, len(self.scalars))
            self.scalars.append(found)
            self._known[key] = found
        return found

    def symbol_of(self, checked: Scalar, size: Index) -> Symbol:
        """The index symbol that stands for a checked scalar."""
        found = self._indirect.get((checked, size))
        if found is None:
            found = Symbol(f"t{checked.number}", size, scalar=checked)
            self._indirect[checked, size] = found
        return found


class _Recording(threading.local):
    """The traces that a thread is recording, the innermost last."""

    def __init__(self) -> None:
        self.traces: list[Trace] = []


_recording = _Recording()


@contextlib.contextmanager
def tracing(trace: Trace) -> Iterator[Trace]:
    """Makes `trace` the one that `ops` records in, on this thread."""
    traces = _recording.traces
    traces.append(trace)
    try:
        yield trace
    finally:
        traces.pop()


def current() -> Trace:
    """The trace that this thread is recording."""
    return _recording.traces[-1]


class _Ops:
    """The functions that bodies call: one method for each entry of `OPS`, and those below."""

    def __getattr__(self, name: str) -> Callable[..., Scalar]:
        arity, rule, _ = OPS[name]

        def call(*args: Any) -> Scalar:
            if len(args) != arity:
                raise TypeError(f"{name} takes {arity} operands, got {len(args)}")
            first = next(a for a in args if isinstance(a, Scalar))
            operands = tuple(
                a if isinstance(a, Scalar) else self.constant(a, first.dtype) for a in args
            )
            for a in operands:
                if a.dtype is not first.dtype:
                    raise TypeError(f"{name}: operands of {first.dtype} and {a.dtype}")
            if first.dtype.is_complex:
                return complex_numbers.compute(self, name, operands)
            if rule == "f" and not first.dtype.is_floating_point:
                raise TypeError(f"{name}: floating operands only, got {first.dtype}")
            dtype = torch.bool if rule == "b" else first.dtype
            return _simplify(name, operands) or current().record(name, operands, dtype)

        setattr(self, name, call)
        return call

    def constant(self, value: Any, dtype: torch.dtype) -> Scalar:
        """A Python number as a scalar of `dtype` (converted as PyTorch converts a fill value)."""
        dtype = compute_dtype(dtype)
        if dtype.is_complex:
            parts = (value.real, value.imag) if isinstance(value, complex) else (value, 0.0)
            return self.pair(*(self.constant(x, dtype.to_real()) for x in parts))
        if dtype is torch.bool:
            value = bool(value)
        elif dtype.is_floating_point:
            value = ctypes.c_float(value).value if dtype is torch.float32 else float(value)
        else:
            info = torch.iinfo(dtype)
            value = int(value) if not isinstance(value, float) or math.isfinite(value) else 0
            value = (value - info.min) % (info.max - info.min + 1) + info.min
        # 0.0 == -0.0 and NaN != NaN: the key is the spelling.
        return current().record("constant", (repr(value), _Number(value)), dtype)

    def index(self, e: Index, dtype: torch.dtype = torch.int64) -> Scalar:
        """An index expression as a number."""
        if isinstance(e, int):
            return self.constant(e, dtype)
        return current().record("index", (e,), compute_dtype(dtype))

    def load(self, buffer: Any, index: Index) -> Scalar:
        """The element of `buffer` at `index` (elements from the start of its storage)."""
        mask = current().mask
        dtype = compute_dtype(buffer.dtype)
        other = None if mask is None else self.constant(0, dtype)
        return current().record("load", (buffer, index, mask, other), dtype)

    def to(self, x: Scalar, dtype: torch.dtype) -> Scalar:
        """`x` converted to `dtype`; a 16-bit float dtype means its compute dtype."""
        dtype = compute_dtype(dtype)
        if x.dtype is dtype:
            return x
        if x.dtype.is_complex or dtype.is_complex:
            return complex_numbers.convert(self, x, dtype)
        if x.op == "constant":
            return self.constant(x.args[1].value, dtype)
        if x.op == "index" and dtype.is_floating_point is False and dtype is not torch.bool:
            return self.index(x.args[0], dtype)
        return current().record("to", (x,), dtype)

    def bitcast(self, x: Scalar, dtype: torch.dtype) -> Scalar:
        """The bits of `x` as another dtype of the same width."""
        return x if x.dtype is dtype else current().record("bitcast", (x,), dtype)

    def pair(self, real: Scalar, imag: Scalar) -> Scalar:
        """The complex number of these parts."""
        if real.op == "real" and imag.op == "imag" and real.args == imag.args:
            whole: Scalar = real.args[0]
            return whole
        return current().record("pair", (real, imag), real.dtype.to_complex())

    def real(self, x: Scalar) -> Scalar:
        """The real part of a complex number."""
        return x.args[0] if x.op == "pair" else current().record("real", (x,), x.dtype.to_real())

    def imag(self, x: Scalar) -> Scalar:
        """The imaginary part of a complex number."""
        return x.args[1] if x.op == "pair" else current().record("imag", (x,), x.dtype.to_real())

    def where(self, condition: Scalar, x: Any, y: Any) -> Scalar:
        """x where the condition (bool) holds, else y."""
        like = x if isinstance(x, Scalar) else y
        x = x if isinstance(x, Scalar) else self.constant(x, like.dtype)
        y = y if isinstance(y, Scalar) else self.constant(y, like.dtype)
        if x.dtype is not y.dtype:
            raise TypeError(f"where: operands of {x.dtype} and {y.dtype}")
        if x is y:
            return x
        if condition.op == "constant":
            return x if condition.args[1].value else y
        if x.dtype.is_complex:
            return complex_numbers.by_parts(self, lambda a, b: self.where(condition, a, b), x, y)
        return current().record("where", (condition, x, y), x.dtype)

    def random(
        self, name: str, dtype: torch.dtype, seed: Scalar, offset: Scalar, element: Scalar
    ) -> Scalar:
        """Element `element` of the random numbers under (seed, offset): an entry of
        `RANDOM_NUMBERS`, in one of its dtypes."""
        if dtype not in RANDOM_NUMBERS[name][0]:
            raise TypeError(f"{name}: not of {dtype}")
        return current().record(name, (seed, offset, element), dtype)

    def masked(self, mask: Scalar, body: Callable[[], Scalar], other: Any) -> Scalar:
        """`body()` where the mask holds, else `other`; loads in the body happen only there."""
        if mask.op == "constant" and mask.args[1].value:
            return body()
        trace = current()
        outer = trace.mask
        trace.mask = mask if outer is None else self.logical_and(outer, mask)
        try:
            inside = body()
        finally:
            trace.mask = outer
        if inside.op == "load" and inside.args[2] is mask and not isinstance(other, Scalar):
            # The load itself gives the other value.
            value = self.constant(other, inside.dtype)
            return trace.record("load", (*inside.args[:3], value), inside.dtype)
        return self.where(mask, inside, other)

    def indirect(self, x: Scalar, size: Index, message: str, wrap: bool = False) -> Expr:
        """An integer scalar as an index into `size` elements, checked when the loop runs.

        `message` names the error that the host raises (see `check`); with `wrap`, negative values
        count from the end, as in Python.
        """
        x = self.to(x, torch.int64)
        if wrap:
            x = self.where(self.lt(x, 0), self.add(x, self.index(size)), x)
        trace = current()
        args = (x, size, message, trace.mask, trace.call_index)
        checked = trace.record("check", args, torch.int64)
        return var(trace.symbol_of(checked, size))


class _Number:
    """A constant's value, equal to every other: the spelling beside it is what counts."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Number)

    def __hash__(self) -> int:
        return 0


ops: Any = _Ops()


def _constant(x: Scalar) -> Any:
    return x.args[1].value if x.op == "constant" else None


def _simplify(name: str, args: tuple[Scalar, ...]) -> Scalar | None:
    """The operand that the result equals, where that is certain for every value of the others."""
    if name in ("mul", "div") and _constant(args[1]) == 1:
        return args[0] if args[0].dtype is not torch.bool else None
    if name == "mul" and _constant(args[0]) == 1 and args[0].dtype is not torch.bool:
        return args[1]
    if (
        name in ("add", "sub")
        and not args[0].dtype.is_floating_point
        and args[0].dtype is not torch.bool
        and _constant(args[1]) == 0
    ):
        return args[0]
    if name in _COMPARED and args[0].dtype is torch.int64:
        decided = _compare(name, *args)
        if decided is not None:
            return current().record("constant", (repr(decided), _Number(decided)), torch.bool)
    if name == "logical_and":
        for a, b in (args, args[::-1]):
            if a.op == "constant":
                return b if _constant(a) else a
    if name == "logical_or":
        for a, b in (args, args[::-1]):
            if a.op == "constant":
                return a if _constant(a) else b
    return None


_COMPARED = {"lt": (0, 1), "le": (0, 1), "gt": (1, 0), "ge": (1, 0)}


def _compare(name: str, x: Scalar, y: Scalar) -> bool | None:
    """The result of comparing two index expressions, where their ranges decide it."""
    sides = []
    for s in (x, y):
        if s.op == "constant":
            sides.append(s.args[1].value)
        elif s.op == "index":
            sides.append(s.args[0])
        else:
            return None
    first, second = _COMPARED[name]
    a, b = sides[first], sides[second]
    strict = name in ("lt", "gt")
    difference = b - a - (1 if strict else 0)
    if nonnegative(difference):
        return True
    if nonnegative(-difference - 1):
        return False
    return None
