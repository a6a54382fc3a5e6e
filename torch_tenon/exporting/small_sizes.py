"""Forms of a method for sizes of 0 and 1, which PyTorch's trace treats apart.

A trace takes a dynamic size for 2 at least, as a dimension of 1 broadcasts, and a tensor without
elements has no greatest. What it found out so need not hold of 1 and 0. So the model is traced
again for each choice of the sizes that may be 1, and for each size that may be 0.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch import Tensor, nn
from torch._dynamo.exc import UserError
from torch.export import Dim, ExportedProgram, ShapesCollection
from torch.export.graph_signature import InputKind, TensorArgument
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils._sympy.value_ranges import bound_sympy

from torch_tenon.exporting.assigned import assigned_buffers

MOST = 2  # sizes that are taken so: each more than doubles the traces
Values = dict[sympy.Symbol, int]


def choices(program: ExportedProgram) -> Iterator[Values]:
    """Which sizes of a program's inputs may be small: some of them 1, in each way but that none is,
    and then each of them 0 while the others are 2 at least."""
    ones = may_be(program, 1)[:MOST]
    for count in range(1, len(ones) + 1):
        for chosen in itertools.combinations(ones, count):
            yield dict.fromkeys(chosen, 1)
    for symbol in may_be(program, 0)[:MOST]:
        yield {symbol: 0}


def may_be(program: ExportedProgram, number: int) -> list[sympy.Symbol]:
    """The sizes of a program's inputs that may be a number, as they were asked for, in their order.
    Of `2 * n` it is `n`."""
    bounds = program.range_constraints
    found: dict[sympy.Symbol, None] = {}
    for size in (e for shape in _shapes(program) for e in shape):
        symbols = list(getattr(size, "free_symbols", ()))
        if len(symbols) == 1 and size in bounds:
            (symbol,) = symbols
            if bounds[size].lower <= size.subs(symbol, number) <= bounds[size].upper:
                found[symbol] = None
    return list(found)


def with_sizes(model: nn.Module, program: ExportedProgram, values: Values) -> ExportedProgram:
    """The program of a model for such sizes, others as they are in `program`, which is of that
    model too. Raises ValueError where its examples have no such part, and whatever PyTorch raises
    where the model takes no such sizes."""
    if program.example_inputs is None:
        raise ValueError("the program has no examples of its inputs")
    leaves, structure = tree_flatten(program.example_inputs)
    tensors = [k for k, x in enumerate(leaves) if isinstance(x, Tensor)]
    any_size: list[tuple[int, dict[int, Any]]] = []
    for k, shape in zip(tensors, _shapes(program), strict=True):
        x = leaves[k]
        sizes = [e.subs(values) if isinstance(e, sympy.Basic) else e for e in shape]
        for d, size in enumerate(sizes):
            if not getattr(size, "free_symbols", ()):
                if not 0 <= int(size) <= x.shape[d]:
                    raise ValueError(f"an example has no part of size {size}")
                x = x.narrow(d, 0, int(size))
        leaves[k] = x.clone(memory_format=torch.contiguous_format)
        any_size.append((k, {d: e for d, e in enumerate(sizes) if getattr(e, "free_symbols", ())}))
    args, kwargs = tree_unflatten(leaves, structure)

    def traced(dim: Callable[[Any], Any]) -> ExportedProgram:
        shapes: Any = ShapesCollection()
        for k, sizes in any_size:
            if sizes:
                shapes[leaves[k]] = {d: dim(e) for d, e in sizes.items()}
        given = shapes if any(sizes for _, sizes in any_size) else None
        with torch.no_grad(), assigned_buffers(model):
            return torch.export.export(
                model, args, kwargs or None, dynamic_shapes=given, strict=False
            )

    dims: dict[sympy.Symbol, Any] = {}
    try:
        return traced(lambda e: _dim(e, program, dims))
    except UserError:
        # PyTorch refuses a Dim for a condition that it cannot prove, true or not. Without names
        # the condition is the program's to check.
        return traced(lambda e: _hint(e, program))


def _shapes(program: ExportedProgram) -> list[list[Any]]:
    """The sizes of each tensor among the inputs, in their order, as numbers and expressions."""
    values = {n.name: n.meta["val"] for n in program.graph.find_nodes(op="placeholder")}
    return [
        [n.node.expr if isinstance(n, torch.SymInt) else n for n in values[s.arg.name].shape]
        for s in program.graph_signature.input_specs
        if s.kind is InputKind.USER_INPUT and isinstance(s.arg, TensorArgument)
    ]


def _dim(size: Any, program: ExportedProgram, dims: dict[sympy.Symbol, Any]) -> Any:
    """A size as `torch.export` takes it. Raises ValueError for one that it does not take."""
    (symbol, *others) = size.free_symbols
    if others:
        raise ValueError(f"the size {size} is of several others")
    if symbol not in dims:
        bounds = program.range_constraints[symbol]
        upper = int(bounds.upper) if bounds.upper.is_Integer else None
        dims[symbol] = Dim(str(symbol), min=max(int(bounds.lower), 2), max=upper)
    if not size.is_polynomial(symbol) or sympy.degree(size, symbol) != 1:
        raise ValueError(f"the size {size} is no multiple of another")
    factor, rest = (int(c) for c in sympy.Poly(size, symbol).all_coeffs())
    found = factor * dims[symbol] if factor != 1 else dims[symbol]
    return found + rest if rest else found


def _hint(size: Any, program: ExportedProgram) -> Any:
    """A size as `torch.export` takes one of which it may ask for more than its bounds."""
    ranges = {symbol: program.range_constraints[symbol] for symbol in size.free_symbols}
    bounds = bound_sympy(size, ranges)
    upper = int(bounds.upper) if bounds.upper.is_Integer else None
    return Dim.DYNAMIC(min=max(int(bounds.lower), 2), max=upper)
