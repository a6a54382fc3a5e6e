"""Complex numbers: which ops have loops over them, and how.

Ops of three kinds do: those whose lowering treats an element as a whole or computes with what
`ir/complex_numbers.py` has formulas for, those that are linear, so that they are done with the real
and with the imaginary parts (`complex` in the table of ops), and those with a lowering here
(`_OWN`). All others are calls, but what PyTorch composes of such ops is so in stand-alone programs.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from torch_tenon.ir.dtypes import TABLE
from torch_tenon.ir.index import product
from torch_tenon.ir.scalar import Scalar, ops
from torch_tenon.ir.values import Layout, Stored, Value, imag_part, joined, pairs_joined, real_part
from torch_tenon.ops.lowerings.copies import alias
from torch_tenon.ops.lowerings.indexing import index_put
from torch_tenon.ops.lowerings.pointwise import pow_
from torch_tenon.ops.lowerings.reductions import dims_of, number_value
from torch_tenon.ops.lowerings.scatters import adds_by_scatter, index_add
from torch_tenon.ops.lowerings.table import (
    Build,
    CannotLower,
    Lowering,
    elementwise,
    find,
    lowering,
    promote,
)
from torch_tenon.ops.variants import known_of

_OWN: dict[str, Lowering] = {}


def complex_lowering(op: Any, dtypes: Sequence[torch.dtype]) -> Lowering | None:
    """The lowering of an op some of whose tensors, whose dtypes these are, are complex; None for
    one that is composed of others. Raises CannotLower for an op without."""
    name = str(op).rpartition(".")[0]
    way = known_of(op).complex
    if not (way or name in _OWN) or any(d not in TABLE for d in dtypes):
        raise CannotLower("complex numbers")
    function = _OWN.get(name) or find(op)
    if way == "parts" and function is not None:
        return functools.partial(_by_parts, function)
    return function


def is_composed_of_complex(op: Any) -> bool:
    """Whether an op without loops over complex numbers is PyTorch's composition of others."""
    name = str(op).rpartition(".")[0]
    return not (known_of(op).complex or name in _OWN) and op._can_decompose()


def _by_parts(function: Lowering, b: Build, *args: Any, **keywords: Any) -> Value:
    if not any(isinstance(x, Value) and x.dtype.is_complex for x in args):
        raise CannotLower("complex numbers of real ones")
    if any(isinstance(x, complex) for x in [*args, *keywords.values()]):
        raise CannotLower("a complex factor, which mixes the parts")
    if any(m and not m.dtype.is_complex for m in b.results):
        raise CannotLower("a real result of complex numbers")
    build = replace(b, results=[m and replace(m, dtype=_real(m.dtype)) for m in b.results])

    def apply(part: Callable[[Value], Value]) -> Value:
        given = [part(x) if isinstance(x, Value) and x.dtype.is_complex else x for x in args]
        found: Value = function(build, *given, **{k: _real(x) for k, x in keywords.items()})
        return found

    return joined(apply(real_part), apply(imag_part))


def _real(x: Any) -> Any:
    return x.to_real() if isinstance(x, torch.dtype) and x.is_complex else x


def own(*names: str) -> Callable[[Lowering], Lowering]:
    """Enters the lowering of some ops of complex numbers."""

    def enter(function: Lowering) -> Lowering:
        _OWN.update({f"aten.{name}": function for name in names})
        return function

    return enter


def _of_parts(function: Callable[[Scalar, Scalar], Scalar], cost: int) -> Lowering:
    """A function of the real and the imaginary part of each element."""

    def lower(b: Build, x: Value) -> Value:
        if not x.dtype.is_complex:
            raise CannotLower("real numbers that become complex ones")
        dtype = b.out.dtype
        return elementwise(lambda a: function(ops.real(a), ops.imag(a)), (x,), None, dtype, cost)

    return lower


def _exp(x: Scalar, y: Scalar) -> Scalar:
    """The exponential, of infinities as PyTorch has it. A part may be in the range where the
    absolute value is not: it is multiplied in float64, and with a large one twice by the root."""
    cos, sin, wide = ops.cos(y), ops.sin(y), ops.to(x, torch.float64)
    large = ops.gt(wide, 700.0)
    size = ops.exp(ops.where(large, ops.mul(wide, 0.5), wide))
    again = ops.where(large, size, 1.0)

    def part(share: Scalar) -> Scalar:
        found: Scalar = ops.to(size * ops.to(share, torch.float64) * again, x.dtype)
        return found

    nothing, endless = ops.eq(x, -math.inf), ops.eq(x, math.inf) & ops.isnan(cos)
    real = ops.where(nothing, 0.0, ops.where(endless, x, part(cos)))
    imag = ops.where(nothing, 0.0, ops.where(ops.eq(y, 0.0), y, part(sin)))
    made: Scalar = ops.pair(real, imag)
    return made


def log_of_size(x: Scalar, y: Scalar) -> Scalar:
    """The logarithm of the absolute value, in float64 and of squares: near 1 of what they are more
    than 1, which the absolute value itself has no digits for."""
    a, b = (ops.to(ops.abs(part), torch.float64) for part in (x, y))
    large, small = ops.maximum(a, b), ops.minimum(a, b)
    near = ops.gt(large, 0.5) & ops.lt(large, 2.0)
    squares = ops.mul(large, large), ops.mul(small, small)
    lost = [ops.fma(v, v, -square) for v, square in zip((large, small), squares, strict=True)]
    beyond = squares[0] - 1.0 + squares[1] + (lost[0] + lost[1])
    of_near = ops.mul(ops.log1p(ops.where(near, beyond, 0.0)), 0.5)
    share = ops.where(ops.eq(large, 0.0) | ops.isinf(large), 0.0, small / large)
    far = ops.log(large) + ops.mul(ops.log1p(ops.mul(share, share)), 0.5)
    found: Scalar = ops.where(ops.isinf(a) | ops.isinf(b), math.inf, ops.where(near, of_near, far))
    return found


def _log(x: Scalar, y: Scalar) -> Scalar:
    made: Scalar = ops.pair(ops.to(log_of_size(x, y), x.dtype), ops.atan2(y, x))
    return made


def _sgn(x: Scalar, y: Scalar) -> Scalar:
    size = ops.hypot(x, y)
    nothing = ops.eq(size, 0.0)
    made: Scalar = ops.pair(*(ops.where(nothing, 0.0, part / size) for part in (x, y)))
    return made


own("abs")(_of_parts(ops.hypot, 4))
own("angle")(_of_parts(lambda x, y: ops.atan2(y, x), 8))
own("_conj", "_conj_physical", "conj_physical")(_of_parts(lambda x, y: ops.pair(x, -y), 1))
own("real")(_of_parts(lambda x, y: x, 0))
own("imag")(_of_parts(lambda x, y: y, 0))
own("exp")(_of_parts(_exp, 20))
own("log")(_of_parts(_log, 40))
own("sgn")(_of_parts(_sgn, 8))
own("isnan")(_of_parts(lambda x, y: ops.isnan(x) | ops.isnan(y), 1))
own("isinf")(_of_parts(lambda x, y: ops.isinf(x) | ops.isinf(y), 1))
own("positive", "resolve_conj", "resolve_neg")(alias)


@own("index_put", "_unsafe_index_put", "_index_put_impl")
def put(
    b: Build, x: Value, indices: Any, values: Value, accumulate: bool = False, unsafe: bool = False
) -> Value:
    """Elements at places that indices give; those that are added are so by their parts."""
    if accumulate:
        return _by_parts(index_put, b, x, indices, values, accumulate)
    return index_put(b, x, indices, values)


@own("index_add")
def add_slices(b: Build, x: Value, dim: int, at: Value, source: Value, *, alpha: Any = 1) -> Value:
    """x with `alpha` times the slices of a source added by their parts. The product is a complex
    one, also with 1: NaN of a part goes into the other. A scatter has none."""
    if not adds_by_scatter(x, dim, at, alpha):
        source = elementwise(ops.mul, (source, alpha), x.dtype, x.dtype)
    return _by_parts(index_add, b, x, dim, at, source)


def _multiplied(name: str) -> None:
    """Enters a product, in stand-alone programs, as four of the parts. Elsewhere PyTorch's kernel
    is faster."""
    op = getattr(torch.ops.aten, name).default

    def lower(b: Build, x: Value, y: Value) -> Value:
        function = find(op, standalone=True)
        if not b.program.standalone or function is None or x.dtype is not y.dtype:
            raise CannotLower("complex numbers")
        dtype = _real(b.out.dtype)
        build = replace(b, results=[replace(b.out, dtype=dtype)])
        x_parts, y_parts = ((real_part(v), imag_part(v)) for v in (x, y))
        products = [[function(build, v, w) for w in y_parts] for v in x_parts]
        real = elementwise(ops.sub, (products[0][0], products[1][1]), dtype, dtype)
        imag = elementwise(ops.add, (products[0][1], products[1][0]), dtype, dtype)
        return joined(real, imag)

    own(name)(lower)


for _name in ("mm", "bmm"):
    _multiplied(_name)


def _added(name: str, product: str) -> None:
    """Enters a product that is added to something, without factors."""

    def lower(b: Build, c: Value, x: Value, y: Value, *, beta: Any = 1, alpha: Any = 1) -> Value:
        if (beta, alpha) != (1, 1) or c.dtype is not x.dtype:
            raise CannotLower("complex numbers")
        found = _OWN[f"aten.{product}"](b, x, y)
        return elementwise(ops.add, (c, found), c.dtype, c.dtype)

    own(name)(lower)


for _name, _product in (("addmm", "mm"), ("baddbmm", "bmm")):
    _added(_name, _product)


@own("mean")
def mean(b: Build, x: Value, dim: Any = None, keepdim: bool = False, **keywords: Any) -> Value:
    """The sum, by its parts, divided by a complex number: NaN of a part goes into the other."""
    function = find(torch.ops.aten.sum.dim_IntList)
    assert function is not None
    total = _by_parts(function, b, x, dim, keepdim, **keywords)
    count = product(x.sizes[d] for d in dims_of(dim, len(x.sizes)))
    return elementwise(ops.div, (total, number_value(count)), total.dtype, total.dtype, 8)


@own("pow")
def power(b: Build, x: Any, y: Any) -> Value:
    """Small whole powers, those that PyTorch's kernel multiplies for; in stand-alone programs
    other real ones too."""
    is_number = isinstance(y, int | float) and not isinstance(y, bool)
    if is_number and y in (0, 1, 2, 3):
        return pow_(b, x, y)
    if (
        not is_number
        or not b.program.standalone
        or not isinstance(y, int | float)
        or not isinstance(x, Value)
    ):
        raise CannotLower("a power of complex numbers")
    if abs(y) == 0.5:
        return _OWN["aten.sqrt" if y > 0 else "aten.rsqrt"](b, x)

    def f(u: Scalar, v: Scalar) -> Scalar:
        size = ops.exp(ops.mul(log_of_size(u, v), float(y)))
        angle = ops.mul(ops.to(ops.atan2(v, u), torch.float64), float(y))
        nothing = ops.eq(u, 0.0) & ops.eq(v, 0.0) & ops.constant(y > 0, torch.bool)
        parts = (size * ops.cos(angle), size * ops.sin(angle))
        made: Scalar = ops.pair(*(ops.where(nothing, 0.0, ops.to(p, u.dtype)) for p in parts))
        return made

    return _of_parts(f, 60)(b, x)


@lowering("aten.complex")
def complex_(b: Build, real: Value, imag: Value) -> Value:
    """Complex numbers of their parts."""
    return elementwise(ops.pair, (real, imag), promote(real, imag), b.out.dtype)


@lowering("aten.polar")
def polar(b: Build, size: Value, angle: Value) -> Value:
    """Complex numbers of their absolute value and angle."""

    def f(r: Scalar, phi: Scalar) -> Scalar:
        made: Scalar = ops.pair(r * ops.cos(phi), r * ops.sin(phi))
        return made

    return elementwise(f, (size, angle), promote(size, angle), b.out.dtype, 10)


@lowering("aten.view_as_real")
def view_as_real(b: Build, x: Value) -> Value:
    """The parts of each number as a last dimension of 2, where they lie in memory."""
    stored = b.program.realise(x)
    held = stored.layout
    layout = Layout((*held.sizes, 2), (*(2 * k for k in held.strides), 1), 2 * held.offset)
    return Stored(stored.buffer.seen_as(x.dtype.to_real()), layout)


@lowering("aten.view_as_complex")
def view_as_complex(b: Build, x: Value) -> Value:
    """The numbers whose parts a last dimension of 2 has."""
    return pairs_joined(x)
