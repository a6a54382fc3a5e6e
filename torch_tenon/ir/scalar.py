"""The scalar operations that loop bodies are made of, and the traces that record them.

A loop body is a Python function from an index to calls on this module (`ops.add(x, y)`). Calling it
under a `Trace` records each distinct scalar once; everything that later wants the body (code
generation, dependencies) walks the record, so a body's Python function runs once however often it
is looked at.

Which operations there are, `ir/scalar_ops.py` says. 16-bit floats do not exist here: a load widens
them to float32 and a store narrows them. What is computed of them is rounded where an op ends
(`_Ops.rounded`, `ir/sixteen_bits.py`). Complex numbers are only loaded, stored and passed on: what
is computed with them is computed with their parts (`ir/complex_numbers.py`), which `real` and
`imag` take apart and `pair` puts together.
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
from torch_tenon.ir.dtypes import NoLoops, compute_dtype
from torch_tenon.ir.index import Expr, Index, Symbol, nonnegative, symbols, var
from torch_tenon.ir.scalar_ops import OPS, RANDOM_NUMBERS
from torch_tenon.ir.sixteen_bits import (
    ROUNDING,
    exact_dtypes,
    has_plain_nan,
    rounded_number,
    rounding_of,
)


class Scalar:
    """One recorded operation: its name, operands (scalars or plain data), result dtype. `exact` and
    `plain_nan` are what rounding it to 16 bits asks (`ir/sixteen_bits.py`)."""

    __slots__ = ("args", "dtype", "exact", "number", "op", "plain_nan")

    def __init__(self, op: str, args: tuple[Any, ...], dtype: torch.dtype, number: int) -> None:
        self.op, self.args, self.dtype, self.number = op, args, dtype, number
        self.exact = exact_dtypes(op, args) if dtype is torch.float32 else frozenset()
        self.plain_nan = dtype.is_floating_point and has_plain_nan(op, args)

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
        # Of numbers in float64 that a run gives: what records them as it gives them in float32.
        self.narrow: dict[Scalar, Callable[[], Scalar]] = {}
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
        arity, rule = OPS[name].arity, OPS[name].rule

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
            value = _float32(value) if dtype is torch.float32 else float(value)
        else:
            info = torch.iinfo(dtype)
            value = int(value) if not isinstance(value, float) or math.isfinite(value) else 0
            value = (value - info.min) % (info.max - info.min + 1) + info.min
        # 0.0 == -0.0 and NaN != NaN: the key is the spelling.
        return current().record("constant", (repr(value), _Number(value)), dtype)

    def rounded(self, x: Scalar, dtype: torch.dtype) -> Scalar:
        """`x` as the nearest number of a 16-bit dtype; other dtypes leave it as it is."""
        if dtype not in ROUNDING or dtype in x.exact:
            return x
        if x.op == "constant":
            return self.constant(rounded_number(x.args[1].value, dtype), dtype)
        return current().record(rounding_of(dtype, x.plain_nan), (x,), torch.float32)

    def with_plain_nan(self, x: Scalar) -> Scalar:
        """A floating number, a NaN as arithmetic gives it (see `Scalar.plain_nan`)."""
        return self.where(self.isnan(x), math.nan, x)

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
        if dtype is torch.float32 and x in current().narrow:
            return current().narrow[x]()
        if x.dtype.is_complex or dtype.is_complex:
            return complex_numbers.convert(self, x, dtype)
        if x.op == "constant":
            return self.constant(_converted(x.args[1].value, dtype), dtype)
        if x.op == "index" and _only_cuts(x.dtype, dtype):
            return self.index(x.args[0], dtype)
        if x.op == "where" and all(a.op == "constant" for a in x.args[1:]):
            # Hardware without the dtype of whole numbers chooses between what they become.
            return self.where(x.args[0], *(self.to(a, dtype) for a in x.args[1:]))
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
        count from the end, as in Python. Raises NoLoops for no elements: where a check fails, the
        kernel goes on with the first.
        """
        if isinstance(size, int) and size == 0:
            raise NoLoops("an index into nothing")
        x = self.to(x, torch.int64)
        if wrap:
            x = self.where(self.lt(x, 0), self.add(x, self.index(size)), x)
        trace = current()
        args = (x, size, message, trace.mask, trace.call_index)
        checked = trace.record("check", args, torch.int64)
        return var(trace.symbol_of(checked, size))

    def place(self, x: Scalar, size: Index) -> Expr:
        """An integer scalar as an index into `size` elements, of which it is one wherever anything
        comes of it. Elsewhere the kernel goes on with the first, and nothing is raised. Raises
        NoLoops for no elements, as there is no first."""
        if isinstance(size, int) and size == 0:
            raise NoLoops("an index into nothing")
        trace = current()
        within = trace.record("within", (self.to(x, torch.int64), size), torch.int64)
        return var(trace.symbol_of(within, size))

    def sure_place(self, x: Scalar, size: Index) -> Index:
        """An integer scalar that is an index into `size` elements wherever the loop comes."""
        x = self.to(x, torch.int64)
        if x.op == "constant":
            found: int = x.args[1].value
            return found
        return var(current().symbol_of(x, size))


def _float32(value: Any) -> float:
    """The nearest number of float32. A long whole one keeps a bit that says whether the bits after
    the first ones are 0: by way of float64 it would be rounded twice."""
    if isinstance(value, int) and (cut := value.bit_length() - 53) > 0:
        size = abs(value)
        odd = size >> cut | (size & (1 << cut) - 1 != 0)
        value = math.copysign(float(odd << cut), value)
    return ctypes.c_float(value).value


def _only_cuts(source: torch.dtype, dtype: torch.dtype) -> bool:
    """Whether a whole number is converted to another that has no more bits: what was cut off
    before does not come back."""
    is_whole = not dtype.is_floating_point and dtype is not torch.bool
    return is_whole and dtype.itemsize <= source.itemsize


def _converted(value: Any, dtype: torch.dtype) -> Any:
    """A number as a processor converts it to `dtype`: of floats beyond the whole numbers that it
    converts to, and of NaN, it makes the least one, which is then cut to the width of `dtype`."""
    if not isinstance(value, float) or dtype is torch.bool or dtype.is_floating_point:
        return value
    if dtype is torch.uint64 and 2.0**63 <= value < 2.0**64:
        return int(value)
    bits = 32 if dtype in (torch.int8, torch.int16, torch.int32) else 64
    least = -(1 << bits - 1)
    return int(value) if least <= value < -least else least


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
