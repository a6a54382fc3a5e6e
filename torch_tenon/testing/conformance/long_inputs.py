"""Inputs of our own for the ops of PyTorch's database, whose dimensions seldom pass ten elements.

A kernel for hardware of 32 lanes is in no loop twice there, and meets no rest. These have one lane
less than that, just as many and one more, lengths that take several rounds, and one that no group
of lanes covers at once, as whole tensors, rows and columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
import yaml
from torch.testing import make_tensor
from torch.testing._internal.opinfo.core import (
    BinaryUfuncInfo,
    ReductionOpInfo,
    SampleInput,
    UnaryUfuncInfo,
)

LENGTHS = (31, 32, 33, 1025)
LONGEST = 70_000
# Shapes, and the dimension that is long.
ALONG = (((31,), 0), ((33,), 0), ((5, 97), 1), ((97, 5), 0), ((1025, 3), 0), ((2, 1025), -1))

Make = Callable[..., torch.Tensor]
Samples = Iterator[SampleInput]
Rule = Callable[[Any, torch.dtype, Make], Samples]


def long_inputs(op: Any, dtype: torch.dtype, *, requires_grad: bool) -> list[SampleInput]:
    """Inputs for an entry of the database on the CPU, from one seed; none where no rule has any."""
    how = _rule(op)
    if how is None:
        return []
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(20)
        make = partial(make_tensor, device="cpu", dtype=dtype, requires_grad=requires_grad)
        return [_named(sample) for sample in how(op, dtype, make)]


def _named(sample: SampleInput) -> SampleInput:
    sample.name = "long" + (f", {sample.name}" if sample.name else "")
    return sample


def _rule(op: Any) -> Rule | None:
    for kind, rule in _BY_KIND.items():
        if isinstance(op, kind):
            return rule
    name = _names().get(op.full_name)
    return _BY_NAME[name] if name else None


@cache
def _names() -> dict[str, str]:
    table = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
    return {op: how for how, ops in table.items() for op in ops}


def _pointwise(op: Any, dtype: torch.dtype, make: Make) -> Samples:
    low, high = op.domain
    if dtype.is_floating_point or dtype.is_complex:
        low = None if low is None else low + op._domain_eps
        high = None if high is None else high - op._domain_eps
    for shape in ((31,), (33,), (1025,), (97, 33), (LONGEST,)):
        x = make(shape, low=low, high=high)
        yield SampleInput(x, kwargs=op.sample_kwargs("cpu", dtype, x)[0])


def _of_two(op: Any, dtype: torch.dtype, make: Make) -> Samples:
    shapes: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
        ((31,), (31,)),
        ((33,), (33,)),
        ((97, 33), (33,)),
        ((33, 97), (33, 1)),
        ((LONGEST,), (LONGEST,)),
    )
    for one, other in shapes:
        x = make(one, **op.lhs_make_tensor_kwargs)
        y = make(other, **op.rhs_make_tensor_kwargs)
        yield SampleInput(x, args=(y,), kwargs=op.sample_kwargs("cpu", dtype, x)[0])


def _reduction(op: Any, dtype: torch.dtype, make: Make) -> Samples:
    whole = (((n,), None) for n in (*LENGTHS, LONGEST))
    part = (((5, 97), 1), ((97, 5), 0), ((1025, 3), 0))
    for shape, dim in (*whole, *part):
        x = _telling(op, make(shape), dim or 0)
        given = {} if dim is None else {"dim": dim}
        args, kwargs = next(iter(op.generate_args_kwargs(x.detach(), **given)), ((), {}))
        if dim is not None and "dim" not in kwargs and not args:
            kwargs = {**kwargs, "dim": dim}
        yield SampleInput(x, args=args, kwargs=kwargs)


def _telling(op: Any, x: torch.Tensor, dim: int) -> torch.Tensor:
    """A tensor of whose reduction along `dim` each element is a part, whatever the order.

    Sums of whole numbers have no rounding, nor have products of 1, -1 and a 2 at the end. Of truth
    values the last one alone decides. The greatest and the least come last.
    """
    with torch.no_grad():
        numbers = torch.view_as_real(x) if x.is_complex() else x
        if x.dtype == torch.bool or isinstance(op.identity, bool):
            x.fill_(op.identity is True)
            x.select(dim, -1).fill_(op.identity is not True)
        elif op.identity == 1:
            real = x.real if x.is_complex() else x
            x.copy_((real > 0) * 2 - 1)
            x.select(dim, -1).fill_(2)
        else:
            if numbers.is_floating_point():
                numbers.round_()
            x.select(dim, -1).fill_(10)
            x.select(dim, -2).fill_(-10 if x.dtype.is_signed else 0)
    return x


def _along_a_dimension(op: Any, dtype: torch.dtype, make: Make) -> Samples:
    for shape, dim in ALONG:
        yield SampleInput(make(shape), args=(dim,))


def _normalised(op: Any, dtype: torch.dtype, make: Make) -> Samples:
    for shape in ((31,), (33,), (5, 97), (2, 1025)):
        size = shape[-1:]
        yield SampleInput(make(shape), args=(size, make(size)))


def _choice(op: Any, dtype: torch.dtype, make: Make) -> Samples:
    for shape in ((31,), (33,), (97, 33), (LONGEST,)):
        condition = make_tensor(shape, device="cpu", dtype=torch.bool)
        yield SampleInput(make(shape), args=(condition, make(shape[-1:])))


def _indices(shape: tuple[int, ...], most: int) -> torch.Tensor:
    return torch.randint(most, shape)


def _gathered(op: Any, dtype: torch.dtype, make: Make) -> Samples:
    for shape, dim in ALONG:
        yield SampleInput(make(shape), args=(dim, _indices(shape, shape[dim])))
    yield SampleInput(make((LONGEST,)), args=(0, _indices((LONGEST,), LONGEST)))


def _selected(op: Any, dtype: torch.dtype, make: Make) -> Samples:
    for shape, dim in ALONG:
        yield SampleInput(make(shape), args=(dim, _indices((33,), shape[dim])))


def _joined(op: Any, dtype: torch.dtype, make: Make) -> Samples:
    for shapes, dim in (
        (((31,), (33,)), 0),
        (((97, 33), (2, 33)), 0),
        (((33, 97), (33, 1)), 1),
        (((LONGEST,), (1025,)), 0),
    ):
        yield SampleInput([make(shape) for shape in shapes], args=(dim,))


def _product(op: Any, dtype: torch.dtype, make: Make) -> Samples:
    for rows, length, columns in ((1, 33, 31), (33, 97, 33), (65, 3, 1025), (2, 1025, 2)):
        yield SampleInput(make((rows, length)), args=(make((length, columns)),))


_BY_KIND: dict[type, Rule] = {
    UnaryUfuncInfo: _pointwise,
    BinaryUfuncInfo: _of_two,
    ReductionOpInfo: _reduction,
}
_BY_NAME: dict[str, Rule] = {
    "along_a_dimension": _along_a_dimension,
    "normalised": _normalised,
    "choice": _choice,
    "gathered": _gathered,
    "selected": _selected,
    "joined": _joined,
    "product": _product,
}
