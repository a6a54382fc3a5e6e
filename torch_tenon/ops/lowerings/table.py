"""The table of lowerings, and what every lowering needs: broadcasting and type promotion.

A lowering is a function from a `Build` and the op's arguments (tensors as `Value`s, sizes as
indices) to values. It is found by the op's name: `aten.add` stands for every overload that has no
entry of its own. A lowering that meets arguments it does not cover raises `CannotLower`, and the
op becomes a call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torch_tenon import device
from torch_tenon.compiler.backend import Backend
from torch_tenon.ir.dtypes import TABLE, NoLoops, compute_dtype
from torch_tenon.ir.index import Expr, Index, nonnegative, product
from torch_tenon.ir.program import Program
from torch_tenon.ir.scalar import Scalar, current, ops
from torch_tenon.ir.values import Layout, Lazy, Position, Stored, Value, dense_layout

Lowering = Callable[..., Any]
LOWERINGS: dict[str, Lowering] = {}
# Ops that are linked whole to the target's library, by overload. Their operands may have dtypes
# that loops do not compute in.
LINKED: dict[str, Lowering] = {}
# Whole numbers that most of PyTorch's kernels do not take.
UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
# Custom ops that somebody wrote kernels for, by name as counters have it.
BY_HAND: set[str] = set()


NO_LOWERING = "no lowering"


class CannotLower(NoLoops):
    """This op, with these arguments, has no loops; the message says why."""


@dataclass(frozen=True)
class TensorMeta:
    """What is known of a tensor before it is computed."""

    dtype: torch.dtype
    sizes: tuple[Index, ...]
    strides: tuple[Index, ...]


def are_empty(results: Sequence[TensorMeta | None]) -> bool:
    """Whether none of an op's results has elements."""
    return all(m is not None and product(m.sizes) == 0 for m in results)


@dataclass
class Build:
    """What a lowering may ask: the program, and the metadata of the op's results; `writes` are the
    arguments of an op that writes some and has no functional variant."""

    program: Program
    results: list[TensorMeta | None]
    writes: Sequence[Stored] = ()

    @property
    def backend(self) -> Backend | None:
        """The target's part of the compiler, which knows what is worth it there."""
        return device.backend()

    @property
    def reaches_kernels(self) -> bool:
        """Whether PyTorch's kernels are there and take the device's memory as it is."""
        return not self.program.standalone and device.target().host_memory

    @property
    def out(self) -> TensorMeta:
        """The first result's metadata."""
        first = self.results[0]
        assert first is not None
        return first

    def fitting(self, value: Any, dtype: torch.dtype) -> Any:
        """A number as `fitting` has it. One that is known only when the program runs is looked at
        before each run."""
        is_known = not isinstance(value, Expr | Value)
        if is_run_time_number(value) and not has_all_numbers(dtype, isinstance(value, Expr)):
            self.program.fitting.append((value, dtype))
        return fitting(value, dtype) if is_known else value

    def call(self, target: Any, args: Sequence[Any], keywords: dict[str, Any], route: str) -> Any:
        """A call of the op itself on whole tensors: one value for each result.

        A program that runs without PyTorch checks values in kernels of its own.
        """
        if self.program.standalone and target in _CHECKS:
            self._check_value(*args, **keywords)
            return []
        outputs = [
            None if m is None else (m.dtype, Layout(m.sizes, m.strides)) for m in self.results
        ]
        return self.program.call(
            target,
            [self.concrete(a) for a in args],
            {k: self.concrete(a) for k, a in keywords.items()},
            outputs,
            route,
            writes=self.writes,
        )

    def _check_value(self, value: Value, assert_msg: str = "") -> None:
        """Has the program raise where the one element of a value is 0."""

        def body(p: list[Index], r: list[Index]) -> tuple[Scalar, Index]:
            wrong = ops.eq(value.load([0] * len(value.sizes)), ops.constant(0, value.dtype))
            return ops.index(ops.indirect(wrong, 1, "assert")), 0

        found = self.program.temporary(torch.int64, dense_layout(()))
        loop = self.program.loop("pointwise", body, (), (), found.buffer)
        loop.asserts = True
        if assert_msg:  # in a comment of the code as well
            loop.origin = " ".join(assert_msg.replace("*/", "* /").split())

    def concrete(self, x: Any) -> Any:
        """An argument of a call: values with memory, and with strides that PyTorch accepts."""
        if isinstance(x, Value):
            stored = self.program.realise(x)
            if not all(map(nonnegative, stored.layout.strides)):
                stored = self.program.copy(stored)
            return stored
        if isinstance(x, list | tuple):
            return [self.concrete(y) for y in x]
        return x


_CHECKS = (torch.ops.aten._assert_async.default, torch.ops.aten._assert_async.msg)


def lowering(*names: str) -> Callable[[Lowering], Lowering]:
    """Enters a function into the table under each of `names`."""

    def enter(function: Lowering) -> Lowering:
        for name in names:
            if name in LOWERINGS:
                raise ValueError(f"two lowerings for {name}")
            LOWERINGS[name] = function
        return function

    return enter


def find(target: Any, standalone: bool = False) -> Lowering | None:
    """The lowering of an `OpOverload`, or None. A `standalone` program links no library."""
    name = str(target)
    linked = None if standalone else LINKED.get(name)
    return linked or LOWERINGS.get(name) or LOWERINGS.get(name.rpartition(".")[0])


def broadcast_sizes(*shapes: Sequence[Index]) -> tuple[Index, ...]:
    """The shape that `shapes` broadcast to."""
    rank = max((len(s) for s in shapes), default=0)
    found: list[Index] = [1] * rank
    for shape in shapes:
        for k, n in enumerate(shape):
            d = rank - len(shape) + k
            if found[d] == 1:
                found[d] = n
    return tuple(found)


def broadcast_load(value: Value, sizes: Sequence[Index], position: Position) -> Scalar:
    """The element of `value` that a loop over `sizes` meets at `position`."""
    skip = len(sizes) - len(value.sizes)
    return value.load([0 if n == 1 else position[skip + d] for d, n in enumerate(value.sizes)])


def broadcast_to(value: Value, sizes: Sequence[Index]) -> Lazy:
    """`value` expanded to `sizes`, as a lazy value."""
    return Lazy(sizes, value.dtype, lambda p: broadcast_load(value, sizes, p), (value,), 0)


_CATEGORIES = {"bool": 0, "uint": 1, "int": 1, "float": 2, "complex": 3}


def _category(x: Any) -> int:
    if isinstance(x, Value):
        return _CATEGORIES[TABLE[x.dtype].kind]
    return 0 if isinstance(x, bool) else {float: 2, complex: 3}.get(type(x), 1)


def promote(*args: Any) -> torch.dtype:
    """The dtype that PyTorch computes in for these operands (values and numbers).

    Tensors with dimensions decide; 0-dim tensors, then numbers, only where their kind (bool,
    integer, float, complex) is higher. A complex one makes complex numbers of floats as they are.
    """
    dtype: torch.dtype | None = None
    best = -1
    groups: list[list[Any]] = [[], [], []]
    for a in args:
        if isinstance(a, Value) and not a.is_number:
            groups[0 if a.sizes else 1].append(a)
        elif a is not None:
            groups[2].append(a)
    for group in groups:
        top = max((_category(a) for a in group), default=-1)
        if top <= best:
            continue
        found: torch.dtype | None = None
        for a in group:
            if isinstance(a, Value) and not a.is_number:
                d = a.dtype
            else:
                floating = torch.get_default_dtype()
                d = (torch.bool, torch.int64, floating, floating.to_complex())[_category(a)]
            found = d if found is None else _both(found, d)
        assert found is not None
        if top == 3 and dtype is not None and dtype.is_floating_point:
            found = dtype.to_complex()
        dtype, best = found, top
    assert dtype is not None
    return dtype


def _both(a: torch.dtype, b: torch.dtype) -> torch.dtype:
    """The dtype for numbers of both. Raises CannotLower where PyTorch has none."""
    try:
        return torch.promote_types(a, b)
    except RuntimeError as error:
        raise CannotLower(str(error)) from None


def of_one_dtype(*values: Value | None) -> None:
    """Raises CannotLower for values of several dtypes, which PyTorch's kernel refuses."""
    if len({v.dtype for v in values if v is not None}) > 1:
        raise CannotLower("values of several dtypes")


def of_fractions(x: Value, *more: torch.dtype) -> None:
    """Raises CannotLower for whole numbers, but for those of `more`: PyTorch's kernel refuses
    them."""
    if not x.dtype.is_floating_point and x.dtype not in more:
        raise CannotLower(f"values of {x.dtype}")


def float_type(dtype: torch.dtype) -> torch.dtype:
    """`dtype`, or the default floating dtype for an integer one."""
    return dtype if TABLE[dtype].kind in ("float", "complex") else torch.get_default_dtype()


def elementwise(
    function: Callable[..., Scalar],
    args: Sequence[Any],
    compute: torch.dtype | None,
    dtype: torch.dtype,
    cost: int = 1,
    wide: Sequence[int] = (),
) -> Lazy:
    """`function` over broadcast operands, each converted to `compute` (None: left as it is).

    Those become numbers of a 16-bit `compute`, but for the operands numbered by `wide`: PyTorch's
    kernels of these ops take a number, or a tensor of one element, in float32.
    """
    values = [a for a in args if isinstance(a, Value)]
    for v in values:
        if v.dtype not in TABLE:
            raise CannotLower(f"no loops over {v.dtype}")
    if any(isinstance(a, complex) for a in args) and not (compute or dtype).is_complex:
        raise CannotLower("a complex number among real ones")
    if compute is not None and compute not in TABLE:
        raise CannotLower(f"no loops over {compute}")
    sizes = broadcast_sizes(*(v.sizes for v in values))

    def body(position: Position) -> Scalar:
        operands: list[Any] = []
        for k, a in enumerate(args):
            if a is None:
                operands.append(None)
                continue
            if not isinstance(a, Value):
                x, like = number(a, compute or dtype), compute or dtype
            else:
                x, like = broadcast_load(a, sizes, position), compute or a.dtype
            x = ops.to(x, like)
            one = not isinstance(a, Value) or a.numel() == 1
            operands.append(x if one and k in wide else ops.rounded(x, like))
        return function(*operands)

    return Lazy(sizes, dtype, body, values, cost)


def has_narrow_numbers() -> bool:
    """Whether the numbers that a run gives are there in float32 as well: where the target's kernels
    have no float64, which a number of Python's is."""
    backend = device.backend()
    return backend is not None and not backend.capabilities.has_float64()


def given_number(stored: Stored, narrow: Stored | None, cost: int = 1) -> Lazy:
    """A number that a run gives in float64, and in float32 too where `narrow` is there. What a loop
    converts to float32 is read from that, and rounded as the host rounds it."""

    def body(position: Position) -> Scalar:
        found = ops.with_plain_nan(stored.load(position))
        if narrow is not None:
            current().narrow[found] = lambda: ops.with_plain_nan(narrow.load(position))
        return found

    inputs = (stored,) if narrow is None else (stored, narrow)
    return Lazy((), stored.dtype, body, inputs, cost)


def is_run_time_number(x: Any) -> bool:
    """Whether an operand is a number that is known only when the program runs."""
    return isinstance(x, Expr) or (isinstance(x, Value) and x.is_number)


def real_if_it_is(x: Any) -> Any:
    """A complex number without an imaginary part as the real one that PyTorch's kernels take."""
    return x.real if isinstance(x, complex) and not x.imag else x


def number(a: Any, dtype: torch.dtype) -> Scalar:
    """A Python number or run-time size as a scalar."""
    wide = compute_dtype(dtype)
    if isinstance(a, bool | int | float | complex):
        made: Scalar = ops.constant(a, wide)
    else:
        made = ops.to(ops.index(a), wide)
    return made


def fitting(value: Any, dtype: torch.dtype) -> Any:
    """A number that an op converts to a dtype. Raises CannotLower for one that PyTorch's kernel
    takes for an overflow: beyond the greatest; of whole numbers, NaN and infinities; a fraction
    below 0 where there is nothing below; or, where the dtype is real, an imaginary part."""
    if isinstance(value, complex) and not dtype.is_complex:
        if value.imag and dtype is not torch.bool:
            raise CannotLower(f"{value} is no {dtype}")
        value = value.real if dtype is not torch.bool else bool(value)
    if dtype is torch.bool or dtype.is_complex or not isinstance(value, int | float):
        return value
    if dtype.is_floating_point:
        most: float = torch.finfo(dtype).max
        fits = math.isinf(value) or value != value or -most <= value <= most
    else:
        info = torch.iinfo(dtype)
        # A whole number below 0 wraps where there is none.
        least = info.min or (-info.max if isinstance(value, int) else 0)
        fits = value == value and least <= value <= info.max
    if not fits:
        raise CannotLower(f"{value} is no {dtype}")
    return value


def fits(value: Any, dtype: torch.dtype) -> bool:
    """Whether a number is one that `fitting` takes."""
    try:
        fitting(value, dtype)
    except CannotLower:
        return False
    return True


def has_all_numbers(dtype: torch.dtype, whole: bool) -> bool:
    """Whether `fitting` takes every real number, or every whole one of 64 bits."""
    if whole and dtype in (torch.int64, torch.uint64, torch.float32, torch.bfloat16):
        return True
    return dtype in (torch.bool, torch.float64) or dtype.is_complex


def cast(value: Value, dtype: torch.dtype) -> Value:
    """`value` converted to `dtype`."""
    if value.dtype is dtype:
        return value
    if dtype not in TABLE or value.dtype not in TABLE:
        raise CannotLower(f"no loops from {value.dtype} to {dtype}")
    if value.dtype.is_complex and not dtype.is_complex and dtype is not torch.bool:
        raise CannotLower("a complex number as a real one, which warns")
    return elementwise(lambda x: ops.to(x, dtype), (value,), None, dtype, 1)
