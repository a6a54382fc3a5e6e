"""The in-place and `out=` variants of an op: found at run time, and derived from its kernel.

A backend writes a kernel for the functional op alone. Which other ops compute the same thing is
not in the dispatcher, and the names of overloads do not tell (`add.Tensor` has `add.out`,
`bernoulli.p` has `bernoulli_.float`), so the argument lists are compared: variants agree in name,
arguments and results, but for what is written. The tests hold this against the grouping that
PyTorch's code generator makes, for every op.
"""

import functools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves, tree_map_only

from torch_tenon.ops import manifest

# The key of variants that PyTorch's generator makes of another variant.
_MADE_OF_ANOTHER = "CompositeExplicitAutograd"
_FACTORY_OPTIONS = ("dtype", "layout", "device", "pin_memory")


class Derived(NamedTuple):
    """The variants of a functional op; None where there is none.

    `mutable` returns new tensors as the functional op does, and also writes arguments after
    `self`, which the functional op returns as further results instead.
    """

    inplace: OpOverload | None
    out: OpOverload | None
    mutable: OpOverload | None


def derive(functional: OpOverload) -> Derived:
    """The variants of `functional`, by the dispatcher's schemas.

    Raises ValueError if `functional` writes to an argument, and so is not functional.
    """
    written = [a.name for a in functional._schema.arguments if is_written(a)]
    if written:
        raise ValueError(
            f"{functional} is not functional: it writes {', '.join(written)}; "
            "give the variant that returns new tensors only"
        )
    wanted = _signature(functional)
    found: dict[str, OpOverload] = {}
    for kind, candidate in _candidates(functional):
        if _signature(candidate) == wanted:
            if kind in found:
                raise ValueError(
                    f"{functional} has two {kind} variants: {found[kind]}, {candidate}"
                )
            found[kind] = candidate
    return Derived(found.get("inplace"), found.get("out"), found.get("mutable"))


@functools.cache
def functional_of(op: OpOverload) -> OpOverload | None:
    """The op that computes what `op` does and writes nothing; itself, if it is one. None where
    PyTorch has none. The functional op's results are those of `op`, then what it writes: `out=`
    arguments first, then the others."""
    if not any(is_written(a) for a in op._schema.arguments):
        return op

    def signature(op: OpOverload) -> tuple[object, ...]:
        arguments, results = _signature(op)
        return sorted(arguments), results  # polygamma(n, self), but polygamma_(self, n)

    wanted = signature(op)
    base = op._schema.name.split("::")[1]
    names = [base, base.removesuffix("_")]
    if base.startswith("__i") and base.endswith("__"):
        names.append(f"__{base[3:]}")
    names += [f"{name}_functional" for name in names]
    for name in dict.fromkeys(names):
        packet = getattr(getattr(torch.ops, op.namespace), name, None)
        for suffix in packet.overloads() if packet is not None else ():
            candidate: OpOverload = getattr(packet, suffix)
            writes = any(is_written(a) for a in candidate._schema.arguments)
            if not writes and signature(candidate) == wanted:
                return candidate
    return None


def register_with_variants(
    library: torch.library.Library,
    functional_name: str,
    fn: Callable[..., Any],
    dispatch_key: str = "PrivateUse1",
) -> list[str]:
    """Registers `fn` for a functional op, and kernels made of it for the op's variants.

    `functional_name` is qualified (`aten::lerp.Scalar`); `fn` takes the op's arguments and
    returns new tensors. The derived kernels call it and write what it returns: in place if it can
    be cast to the argument's dtype and has its shape, to `out=` after the cast check and a resize
    with PyTorch's warning. A variant that PyTorch composes of other ops, autograd included, is
    left to PyTorch. Returns the names of the ops registered.

    Raises AttributeError for an unknown op and ValueError for one that is not functional; the
    derived kernels raise RuntimeError with PyTorch's words.
    """
    functional = overload(functional_name)
    registered = [functional_name]
    library.impl(functional, fn, dispatch_key)
    for variant in derive(functional):
        if variant is None:
            continue
        name = variant.name()
        if torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd"):
            continue
        library.impl(variant, _derived_kernel(functional, variant, fn), dispatch_key)
        registered.append(name)
    return registered


def overload(name: str) -> OpOverload:
    """The op of a qualified name: `aten::lerp.Scalar`, `aten::abs`. AttributeError if unknown."""
    namespace, _, rest = name.partition("::")
    base, _, suffix = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace), base), suffix or "default")


def known_of(target: Any) -> manifest.Entry:
    """What the table of ops says of the target of a call: nothing of what is no `OpOverload`."""
    return manifest.of(target.name()) if isinstance(target, OpOverload) else manifest.NOTHING


def draws_numbers(target: Any) -> bool:
    """Whether the target of a call draws random numbers."""
    return isinstance(target, OpOverload) and torch.Tag.nondeterministic_seeded in target.tags


def refused_dtype(op: Any, args: Sequence[Any], keywords: Mapping[str, Any]) -> str:
    """The first argument of a dtype that the CPU's kernel does not take, in words; empty where
    there is none. The arguments are tensors, or anything else that has a dtype."""
    rules = known_of(op).argument_dtypes
    if not rules:
        return ""
    given = dict(zip((a.name for a in op._schema.arguments), args, strict=False)) | dict(keywords)
    for name, *taken in map(str.split, rules):
        dtype = getattr(given.get(name), "dtype", None)
        if dtype is not None and dtype not in [getattr(torch, word) for word in taken]:
            return f"{op.name()} takes `{name}` of {' or '.join(taken)}, and not of {dtype}"
    return ""


def _derived_kernel(
    functional: OpOverload, variant: OpOverload, fn: Callable[..., Any]
) -> Callable[..., Any]:
    schema = variant._schema
    arguments = [a for a in schema.arguments if not is_out(a)]
    outs = [a.name for a in schema.arguments if is_out(a)]
    written = [a.name for a in _written(variant)]
    several = len(functional._schema.returns) != 1
    returns_written = _returns_written(variant)
    # A factory's out= variant says by its tensor what the functional one is told in options.
    options = _is_factory(functional) and not _is_factory(variant)

    def kernel(*given: Any, **named: Any) -> Any:
        # The dispatcher leaves out arguments that equal their default, and the functional op may
        # have another default.
        named |= {a.name: value for a, value in zip(arguments, given, strict=False)}
        values = {a.name: named.get(a.name, a.default_value) for a in arguments}
        targets = [None if is_left(variant, name) else named.get(name) for name in written]
        positional = [values[a.name] for a in arguments if not a.kwarg_only]
        keywords = {a.name: values[a.name] for a in arguments if a.kwarg_only}
        if options:
            out = named[written[0]]
            keywords |= {"dtype": out.dtype, "layout": out.layout, "device": out.device}
        returned = fn(*positional, **keywords)
        results = list(returned) if several else [returned]
        fresh = results[: len(results) - len(targets)]
        made = results[len(fresh) :]
        if outs and any(_is_cast(t, r) for t, r in zip(targets, made, strict=True)):
            _refuse_as_host(variant, named)
        with torch._C._AutoDispatchBelowAutograd():
            for name, target, result in zip(written, targets, made, strict=True):
                _write(target, result, resize=name in outs)
        if not schema.returns:
            return None
        wanted = targets[: len(schema.returns)] if returns_written else fresh
        return wanted[0] if len(wanted) == 1 else tuple(wanted)

    kernel.__name__ = kernel.__qualname__ = f"{schema.name}_{schema.overload_name or 'default'}"
    return kernel


def _is_cast(target: Any, result: Any) -> bool:
    """Whether an argument gets a result of another dtype."""
    if isinstance(target, torch.Tensor) and isinstance(result, torch.Tensor):
        return target.dtype is not result.dtype
    return False


def _refuse_as_host(variant: OpOverload, named: Mapping[str, Any]) -> None:
    """Raises what PyTorch's kernel says of a dtype of `out`: some cast, and some refuse others.
    Nothing but the call itself tells which."""
    tensors = [x for x in tree_leaves(named) if isinstance(x, torch.Tensor)]
    if all(x.device.type == "cpu" for x in tensors):
        return  # the kernel for the host itself
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a size that is changed: the caller says so
        variant(**tree_map_only(torch.Tensor, lambda x: x.detach().cpu().clone(), dict(named)))


def _write(target: Any, result: Any, *, resize: bool) -> None:
    if target is None or result is None:
        return  # An optional tensor that was not given, or a result that was masked out.
    if isinstance(target, Sequence):
        for one, of_it in zip(target, result, strict=True):
            _write(one, of_it, resize=resize)
        return
    if target.device != result.device:
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, "
            f"{result.device} and {target.device}!"
        )
    same_shape = target.shape == result.shape
    if not same_shape and not resize:
        raise RuntimeError(
            f"output with shape {list(target.shape)} doesn't match the broadcast shape "
            f"{list(result.shape)}"
        )
    if not torch.can_cast(result.dtype, target.dtype):
        raise RuntimeError(
            f"result type {_scalar_type(result.dtype)} can't be cast to the desired output type "
            f"{_scalar_type(target.dtype)}"
        )
    if not same_shape:
        _resize(target, result)
    target.copy_(result)


def _resize(out: torch.Tensor, result: torch.Tensor) -> None:
    # As at::native::resize_output and the structured kernels do it: what was resized also gets
    # the strides of the result, so that channels-last stays channels-last.
    if out.numel() != 0:
        warnings.warn(
            f"An output with one or more elements was resized since it had shape "
            f"{list(out.shape)}, which does not match the required output shape "
            f"{list(result.shape)}. This behavior is deprecated, and in a future PyTorch release "
            "outputs will not be resized unless they have zero elements. You can explicitly reuse "
            "an out tensor t by resizing it, inplace, to zero elements with t.resize_(0).",
            stacklevel=4,
        )
    out.resize_(result.shape)
    if not result.is_contiguous() and torch.ops.aten.is_non_overlapping_and_dense(result):
        out.as_strided_(result.shape, result.stride())


def _scalar_type(dtype: torch.dtype) -> str:
    # C++ spells dtypes in its own way (Long, ComplexFloat) and Tensor.type() knows how.
    name = torch.empty(0, dtype=dtype, device="cpu").type()
    return name.removeprefix("torch.").removesuffix("Tensor")


def is_written(argument: torch.Argument) -> bool:
    """Whether the op writes to what it is given there."""
    return argument.alias_info is not None and argument.alias_info.is_write


def is_out(argument: torch.Argument) -> bool:
    """Whether what it is given there is only written: an `out=`."""
    return argument.kwarg_only and is_written(argument)


@functools.cache
def is_left(op: OpOverload, name: str) -> bool:
    """Whether an op leaves an argument as it is, though its schema says that it writes it.

    PyTorch's generator makes an `out=` variant of the functional op. Such a variant copies into
    `out` alone, and what is written beside it gets nothing.
    """
    schema = op._schema.arguments
    return (
        any(is_out(a) for a in schema)
        and any(a.name == name and is_written(a) and not is_out(a) for a in schema)
        and torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), _MADE_OF_ANOTHER)
    )


def _written(op: OpOverload) -> list[torch.Argument]:
    # What the op writes, in the order of the functional op's results.
    arguments = op._schema.arguments
    outs = [a for a in arguments if is_out(a)]
    return outs + [a for a in arguments if is_written(a) and not a.kwarg_only]


def _if_given(type: Any) -> Any:
    # What is written through an optional argument is a result that is there.
    return type.getElementType() if isinstance(type, torch.OptionalType) else type


def _returns_written(op: OpOverload) -> bool:
    # Whether the op returns what it writes (in place, out=), or new tensors, or nothing.
    returns = op._schema.returns
    return not returns or any(r.alias_info is not None and r.alias_info.is_write for r in returns)


def _is_factory(op: OpOverload) -> bool:
    names = {a.name for a in op._schema.arguments if a.kwarg_only}
    return names.issuperset(_FACTORY_OPTIONS)


def _names(functional: OpOverload) -> tuple[str, str]:
    # The names that variants of an op go by: without and with writing to self.
    base = functional._schema.name.split("::")[1]
    base = base.removesuffix("_functional")
    if base.startswith("__") and base.endswith("__"):
        return base, f"__i{base[2:]}"
    return base, f"{base}_"


def _candidates(functional: OpOverload) -> Iterator[tuple[str, OpOverload]]:
    namespace = getattr(torch.ops, functional.namespace)
    base, inplace = _names(functional)
    for name in (base, inplace):
        packet = getattr(namespace, name, None)
        for overload in packet.overloads() if packet is not None else ():
            op = getattr(packet, overload)
            arguments = op._schema.arguments
            if name == inplace:
                if arguments and is_written(arguments[0]):
                    yield "inplace", op
            elif any(is_out(a) for a in arguments):
                yield "out", op
            elif any(is_written(a) for a in arguments):
                yield "mutable", op


def _signature(op: OpOverload) -> tuple[tuple[Any, ...], tuple[str, ...]]:
    # What variants agree in: arguments without out= and without a factory's options, and results,
    # of which a written argument is one. Defaults may differ; a kernel is given every argument.
    schema = op._schema
    arguments = [a for a in schema.arguments if not is_out(a)]
    if _is_factory(op):
        arguments = [a for a in arguments if a.name not in _FACTORY_OPTIONS]
    written = _written(op)
    # What is returned is what is written, except by ops that return new tensors beside writing.
    fresh = [] if _returns_written(op) else [str(r.type) for r in schema.returns]
    results = fresh + [str(_if_given(a.type)) for a in written]
    return (
        tuple((a.name, str(a.type), a.kwarg_only) for a in arguments),
        tuple(results),
    )
