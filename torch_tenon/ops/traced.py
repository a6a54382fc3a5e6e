"""What a trace takes for an op of the device, where PyTorch's own way does not fit it.

PyTorch registers some decompositions where gradients are taken, for every device. A trace meets
these before it asks the table of compositions. And some results that stand in for the device's lie
otherwise than eager code's.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey
from torch._decomp import decomposition_table, meta_table
from torch._prims_common import suggest_memory_format
from torch._subclasses import FakeTensor, FakeTensorMode
from torch._subclasses.fake_impls import op_implementations_dict
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

from torch_tenon.ops.variants import known_of, refused_dtype

_GRADIENTS = DispatchKey.AutogradPrivateUse1
_CPU = DispatchKey.CPU
_IMPLICIT = DispatchKey.CompositeImplicitAutograd


def above_gradients(op: Any, function: Callable[..., Any]) -> None:
    """Has tensors of the device go through `function` instead of PyTorch's decomposition of `op`.
    What it returns NotImplemented for stays the op itself."""

    def run(*args: Any, **keywords: Any) -> Any:
        found = function(*args, **keywords)
        return (
            op._op_dk(DispatchKey.Autograd, *args, **keywords) if found is NotImplemented else found
        )

    op.py_impl(_GRADIENTS)(run)
    implicit = op.py_kernels.get(_IMPLICIT)
    if implicit is None:
        return

    def decompose(*args: Any, **keywords: Any) -> Any:
        traced = any(isinstance(a, FakeTensor) and a.device.type == "tenon" for a in args)
        return (function if traced else implicit)(*args, **keywords)

    op.py_kernels[_IMPLICIT] = decompose
    op._dispatch_cache.clear()


def stays_whole(*ops: Any) -> None:
    """Has traces of the device meet these ops, as the table of compositions has them."""
    for op in ops:
        above_gradients(op, lambda *args, **keywords: NotImplemented)


def lies_as_on_the_cpu(op: Any, rule: str) -> None:
    """Has results of `op` lie in memory as eager code's do, which are the CPU's. `rule` is what the
    table of ops says of them.

    PyTorch asks itself which of its kernels would run, and so which order the result has. For a
    device of others' it knows no kernel, and takes the dimensions in order. Nor does it ask whether
    all tensors are of one device: tensors of several raise RuntimeError, as in eager code. Of other
    ops it takes its reference in Python, whose results lie otherwise than the kernel's.
    """
    if rule == "kernel":
        op_implementations_dict[op] = _on_the_cpu(op_implementations_dict.get(op))
        return
    if op not in op_implementations_dict and _IMPLICIT not in op.py_kernels:
        op_implementations_dict[op] = _by_rule(rule)
    # What stands in comes of PyTorch's decomposition where there is one, which keeps the operands',
    # and gives its input where that is the result. Its references stand in for sizes of any value.
    known = rule in ("in order", "input") or (rule == "operands" and _is_reference(op))
    if known and op in decomposition_table and op not in meta_table:
        decomposition_table[op] = _of_the_device(op, decomposition_table[op], rule)
    above = op.py_kernels.get(DispatchKey.Autograd, op.py_kernels.get(_IMPLICIT))
    if above is None and op._can_decompose():
        above = functools.partial(op._op_dk, _IMPLICIT)
        if op.has_kernel_for_dispatch_key(_CPU):
            # Beside a kernel for the CPU an op stays whole in traces, and its implicit composition
            # stands in for the result.
            op.py_kernels[_IMPLICIT] = _of_the_device(op, above, rule)
            op._dispatch_cache.clear()
            return
    if above is not None and _GRADIENTS not in op.py_kernels:
        laid = laid_out(op, _of_taken_dtypes(op, above), rule)
        above_gradients(op, in_own_memory(op, laid))


def _is_reference(op: Any) -> bool:
    """Whether an op has one of PyTorch's references in Python, beside its kernel in C++."""
    found = decomposition_table.get(op)
    return found is not None and not found.__module__.startswith("torch._decomp")


def _of_taken_dtypes(op: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function that computes an op. Raises RuntimeError for dtypes that eager code refuses."""

    def run(*args: Any, **keywords: Any) -> Any:
        if why := refused_dtype(op, args, keywords):
            raise RuntimeError(why)
        return function(*args, **keywords)

    return run


def _of_the_device(op: Any, function: Callable[..., Any], rule: str) -> Callable[..., Any]:
    """PyTorch's decomposition, with results as the rule has them where tensors are the device's."""
    laid = in_own_memory(op, laid_out(op, function, rule))

    @functools.wraps(function)
    def run(*args: Any, **keywords: Any) -> Any:
        given = [x for x in tree_leaves((args, keywords)) if isinstance(x, Tensor)]
        is_ours = any(x.device.type == "tenon" for x in given)
        return (laid if is_ours else function)(*args, **keywords)

    return run


def laid_out(op: Any, function: Callable[..., Any], rule: str) -> Callable[..., Any]:
    """The function, with the first of its results as the rule for `op`, which it computes, has it;
    all of them where they are in order. Sizes of any value stay as the function has them
    otherwise."""

    @functools.wraps(function)
    def run(*args: Any, **keywords: Any) -> Any:
        found = function(*args, **keywords)
        first = found[0] if isinstance(found, tuple) else found
        if not isinstance(first, Tensor):
            return found
        if rule == "in order":
            return tree_map_only(Tensor, Tensor.contiguous, found)
        if rule in ("operands", "input"):
            given = [x for x in tree_leaves((args, keywords)) if isinstance(x, Tensor)]
            strides = _of_sum(given if rule == "operands" else [_input(op, args, keywords)])
            if strides is None or strides == _hints(first.stride()):
                return found
            if len(strides) != first.dim():
                return found
            order = sorted(range(first.dim()), key=lambda d: -strides[d])
            back = [order.index(d) for d in range(first.dim())]
            laid = first.permute(order).contiguous().permute(back)
        else:  # images
            given_format = suggest_memory_format(_input(op, args, keywords))
            laid = first.contiguous(memory_format=given_format)
        return (laid, *found[1:]) if isinstance(found, tuple) else laid

    return run


def in_own_memory(op: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function that computes an op, with copies of results that are arguments of its, or other
    results: those of the op itself are tensors of their own."""
    schema = getattr(op, "_schema", None)
    if schema is None or schema.is_mutable or known_of(op).shares:
        return function
    if any(r.alias_info is not None for r in schema.returns):
        return function

    @functools.wraps(function)
    def run(*args: Any, **keywords: Any) -> Any:
        found = function(*args, **keywords)
        if found is NotImplemented:
            return found
        taken = set(map(_memory, tree_leaves((args, keywords))))

        def own(t: Tensor) -> Tensor:
            memory = _memory(t)
            if memory is not None and memory in taken:
                return t.clone()
            taken.add(memory)
            return t

        return tree_map_only(Tensor, own, found)

    return run


def _memory(x: Any) -> int | None:
    """What tells whether two tensors share memory; None for what has none."""
    is_dense = isinstance(x, Tensor) and x.layout is torch.strided
    return x.untyped_storage()._cdata if is_dense else None


def _input(op: Any, args: Sequence[Any], keywords: dict[str, Any]) -> Tensor:
    """The tensor that an op is of: of a gradient's, not the gradient that comes in."""
    names = [a.name for a in op._schema.arguments]
    name = next((n for n in names if n in ("self", "input")), names[0])
    k = names.index(name)
    found: Tensor = args[k] if k < len(args) else keywords[name]
    return found


def _hints(numbers: Sequence[int | torch.SymInt]) -> tuple[int, ...] | None:
    """What sizes of any value are in the call that is traced; None where nobody knows."""
    symbols = [n.node for n in numbers if isinstance(n, torch.SymInt)]
    if not all(node.has_hint() for node in symbols):
        return None
    return tuple(int(n.node.hint) if isinstance(n, torch.SymInt) else n for n in numbers)


def _of_sum(tensors: Sequence[Tensor]) -> tuple[int, ...] | None:
    """The strides of the sum of tensors, by PyTorch's C++; of sizes of any value those in the call
    that is traced."""
    layouts = [(_hints(x.shape), _hints(x.stride())) for x in tensors]
    known = [(sizes, steps) for sizes, steps in layouts if sizes is not None and steps is not None]
    if len(known) < len(layouts):
        return None
    with _disable_current_modes():
        total = [torch.empty_strided(*layout, device="meta") for layout in known]
        found: Tensor = functools.reduce(torch.add, total[1:], total[0])
        return (found if len(total) > 1 else found + 1).stride()


_asked = threading.local()


def _by_rule(rule: str) -> Callable[..., Any]:
    def run(mode: FakeTensorMode, op: Any, *args: Any, **keywords: Any) -> Any:
        given = [x for x in tree_leaves((args, keywords)) if isinstance(x, FakeTensor)]
        if not any(x.fake_device.type == "tenon" for x in given) or getattr(_asked, "on", False):
            return NotImplemented  # PyTorch goes on as ever
        _asked.on = True
        try:
            with mode:
                return in_own_memory(op, laid_out(op, op, rule))(*args, **keywords)
        finally:
            _asked.on = False

    return run


def _on_the_cpu(usual: Callable[..., Any] | None) -> Callable[..., Any]:
    def run(mode: FakeTensorMode, op: Any, *args: Any, **keywords: Any) -> Any:
        def moved(x: Tensor, device: torch.device | str) -> Tensor:
            return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=device)

        given = [x for x in tree_leaves((args, keywords)) if isinstance(x, FakeTensor)]
        devices = dict.fromkeys(x.fake_device for x in given)
        device = next((d for d in devices if d.type == "tenon"), None)
        if device is None:  # without an entry PyTorch goes on as ever
            return usual(mode, op, *args, **keywords) if usual else NotImplemented
        if len(devices) > 1:
            raise RuntimeError(f"{op}: its tensors are on {' and '.join(map(str, devices))}")
        with mode:
            args, keywords = tree_map_only(Tensor, lambda x: moved(x, "cpu"), (args, keywords))
        with mode:
            found = usual(mode, op, *args, **keywords) if usual else op(*args, **keywords)
            return tree_map_only(Tensor, lambda x: moved(x, device), found)

    return run
