"""Gives every op its route: what `import torch` does with the manifest.

Kernels written in C++ have registered themselves when the core was loaded. What is written in
Python (library kernels, decompositions) is registered here, with its in-place and `out=` variants;
everything else that has a CPU kernel runs by reference execution.
"""

import functools
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from torch_tenon import _C, config, log
from torch_tenon.ops import manifest, narrow_steps, variants
from torch_tenon.ops.derived_products import derived
from torch_tenon.ops.manifest import nearest
from torch_tenon.targets.target import Target, TargetError

# Registrations last as long as this object.
_library: torch.library.Library | None = None

_ANY_DEVICE = "CompositeExplicitAutogradNonFunctional"
_COMPOSITE = torch._C.DispatchKey.CompositeExplicitAutograd

# The route of each op that was registered from Python, variants included.
_routes: dict[str, str] = {}


def register_ops(target: Target) -> None:
    """Registers the routes of all ops for the device. Called once, at import."""
    global _library
    for op, kernel in target.library.items():
        if problem := _problem(op, kernel):
            raise TargetError(f"the target {target.name!r}: its `library` has {op!r}, {problem}")
    _library = torch.library.Library("aten", "IMPL")
    entries = manifest.load()
    _C.set_warn_fallback(config.WARN_FALLBACK.read())
    for entry in {id(entry): entry for entry in entries.values()}.values():
        _C.set_op_rule(entry.ops, "", entry)
        for name, known in entry.overloads.items():
            _C.set_op_rule(entry.ops, name, known)
    for op, known in manifest.routed(entries):
        for layout in known.host_layouts:
            _C.take_by_host(*op.partition(".")[::2], layout)
    for op, kernel in target.library.items():
        _register(_library, op, "library", _or_by_host(op, kernel))
    products = derived(target.library)
    for op, kernel in products.items():
        _register(_library, op, "decomposed", kernel)
    decomposed = list(manifest.names_with("route", "decomposed"))
    if decomposed:
        from torch_tenon.ops.decompositions import DECOMPOSITIONS

        for op in decomposed:
            if op in target.library or op in products:
                continue
            if entries[op].at_once:
                _register(_library, op, "decomposed", DECOMPOSITIONS[op])
            elif not variants.overload(op).has_kernel_for_dispatch_key(_COMPOSITE):
                # For the host, and for the layouts of the results alone.
                kernel = counted("decomposed", op, DECOMPOSITIONS[op])
                _library.impl(variants.overload(op), kernel, _COMPOSITE.name)
    narrow_steps.register(_library)
    count = _C.register_reference_kernels()
    # PyTorch has one kernel for all devices of these, in other ops. They are recorded as one op.
    # Those that take tensors of the host as well are no calls of one device, and stay PyTorch's.
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    for op in manifest.names_with("route", "fallback"):
        mixed = bool(entries[op].host_arguments)
        if has_kernel(op, _ANY_DEVICE) and not has_kernel(op, "PrivateUse1") and not mixed:
            _C.record_op(*op.partition(".")[::2])
    log.stage("ops").debug("reference execution for %d ops", count)


def _problem(op: str, kernel: object) -> str | None:
    """Why a library kernel cannot be linked to an op of that name, and what to write; None where it
    can."""
    namespace, colons, rest = op.partition("::")
    base, _, suffix = rest.partition(".")
    if not colons:
        return "which has no namespace: write aten::mm"
    known = [n for n in torch._C._dispatch_get_all_op_names() if n.startswith(f"{namespace}::")]
    same = [n for n in known if n.partition(".")[0] == f"{namespace}::{base}"]
    if not same:
        names = {n.partition(".")[0] for n in known}
        return f"which is no op{nearest(op, sorted(names))}"
    overloads = {n: variants.overload(n) for n in same}
    functional = [n for n, found in overloads.items() if variants.functional_of(found) is found]
    there = f"write one of {', '.join(functional)}"
    if op not in overloads:
        missing = f"which has no overload {suffix!r}" if suffix else "whose tensors have overloads"
        return f"{missing}: {there}"
    if op not in functional:
        follows = variants.functional_of(overloads[op])
        from_what = f": it follows from {follows.name()}" if follows is not None else ""
        return f"which writes its arguments{from_what}"
    if not callable(kernel):
        return f"with {kernel!r}, which is no function"
    return None


def routes_in_python() -> dict[str, str]:
    """The ops registered from Python, with their route."""
    return dict(_routes)


def _register(
    library: torch.library.Library, op: str, route: str, kernel: Callable[..., Any]
) -> None:
    if route != "library":  # which counts itself: it may leave a call to the host
        kernel = counted(route, op, kernel)
    for name in variants.register_with_variants(library, op, kernel):
        _routes[name] = route
        log.stage("ops").debug("%s: %s", name, route)


def _or_by_host(op: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
    """A library kernel; where that is not for its arguments, the host's kernel on copies. What the
    op writes though its schema does not say so, it writes either way."""
    overload = variants.overload(op)
    mutates = manifest.of(op).mutates

    def written(args: Any, kwargs: Any) -> list[torch.Tensor]:
        given = dict(zip((a.name for a in overload._schema.arguments), args, strict=False)) | kwargs
        return [t for name in mutates if isinstance(t := given.get(name), torch.Tensor)]

    @functools.wraps(kernel)
    def run(*args: Any, **kwargs: Any) -> Any:
        originals = written(args, kwargs)
        result = _C.call_library(op, kernel, args, kwargs, originals)
        if result is not NotImplemented:
            return result
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        there = next(t.device for t in tensors if t.device.type == "tenon")
        to_host, back = (lambda t: t.cpu()), (lambda t: t.to(there))
        args, kwargs = tree_map_only(torch.Tensor, to_host, (args, kwargs))
        made = on_host(*args, **kwargs)
        for original, copy in zip(originals, written(args, kwargs), strict=True):
            original.copy_(copy)
        return tree_map_only(torch.Tensor, back, made)

    on_host = counted("fallback", op, overload)
    return run


def counted(route: str, op: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
    """`kernel`, with its calls and their time counted under a route."""

    @functools.wraps(kernel)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter_ns()
        try:
            return kernel(*args, **kwargs)
        finally:
            _C.count(route, op, time.perf_counter_ns() - start)

    return wrapper
