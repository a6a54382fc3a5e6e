"""The check of the table of ops: against PyTorch's list of ops, and against what is implemented."""

import functools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from torch_tenon.ops.manifest import THE_SAME, Entry, Problem, nearest, of

if TYPE_CHECKING:
    from torch_tenon.ops.native import NativeOp

_ARGUMENTS = ("host_arguments", "mutates", "argument_dtypes", "size_arguments")
_WORDS = {
    "kernel": "a kernel registered for the device",
    "library": "a library kernel",
    "decomposed": "a decomposition",
    "lowered": "a lowering",
}


def check(
    entries: Iterable[Entry],
    registered: set[str] | None,
    decompositions: set[str],
    lowerings: set[str],
    library: set[str] | None,
    size_rules: set[str] | None = None,
) -> list[Problem]:
    """What is wrong with a manifest, in its order, then by op.

    `registered` are the ops with a kernel registered for the device, `decompositions` and
    `lowerings` the keys of those tables, `library` the ops linked to a library kernel, `size_rules`
    the core's functions; None where that cannot be known here, which skips the part of the check
    that needs it. Ops outside `aten` cannot be looked up in PyTorch's list: of them only that they
    are named once is checked.
    """
    from torch_tenon.ops import native

    entries, ops = list(entries), native.load()
    table = {op: entry for entry in entries for op in entry.ops}
    named = Counter(op for entry in entries for op in entry.ops)
    problems = [
        Problem(op, f"is named {count} times; keep one") for op, count in named.items() if count > 1
    ]
    overloads: dict[str, list[NativeOp]] = {}
    for op in ops.values():
        overloads.setdefault(op.name.partition(".")[0], []).append(op)
    for entry in entries:
        for name in entry.ops:
            problems += _check_names(name, entry, overloads, ops)
        if size_rules is not None and entry.size_rule and entry.size_rule not in size_rules:
            text = f"`size_rule` is {entry.size_rule!r}, which the core has not"
            problems.append(Problem(entry.ops[0], text + nearest(entry.size_rule, size_rules)))

    implementations = {
        "kernel": registered,
        "library": library,
        "decomposed": decompositions,
        "lowered": lowerings,
    }
    for name, op in ops.items():
        route = of(name, table).route
        have = implementations.get(route)
        if have is not None and not _is_implemented(op, have):
            word = _WORDS[route].removeprefix("a ")
            problems.append(
                Problem(
                    name,
                    f"has route {route} and no {word}{nearest(name, have)}; "
                    "implement it or change its route",
                )
            )
    for route in ("lowered", "decomposed", "library", "kernel"):
        for name in sorted(implementations[route] or ()):
            said = of(name, table).route
            if said:
                # Every route but fallback may end in a registered kernel.
                wrong = said != route and route in ("lowered", "decomposed")
                if wrong or (said == "fallback" and route == "library"):
                    text = f"has {_WORDS[route]}, but route {said}; change one"
                    problems.append(Problem(name, text))
            elif name.startswith("aten::") and not _derived(name, ops, table):
                text = f"has {_WORDS[route]} and no entry with a route{nearest(name, table)}"
                problems.append(Problem(name, f"{text}; add it"))
    return problems


def _check_names(
    name: str,
    entry: Entry,
    overloads: "Mapping[str, Sequence[NativeOp]]",
    ops: "Mapping[str, NativeOp]",
) -> Iterator[Problem]:
    """What is wrong with the names in an entry: of the op, its overloads, arguments, other ops."""
    if not name.startswith("aten::") or entry.removed_in:
        return
    same = [*overloads.get(name, ()), *overloads.get(f"{name}_", ())]
    if not same:
        yield Problem(name, f"is no op of PyTorch{nearest(name, overloads)}")
        return
    known = {op.name.partition(".")[2] or "default" for op in same}
    for overload in entry.overloads:
        if overload not in known:
            yield Problem(name, f"has no overload {overload}{nearest(overload, known)}")
    yield from _check_arguments(name, entry, same)
    for overload, part in entry.overloads.items():
        these = [op for op in same if (op.name.partition(".")[2] or "default") == overload]
        own = [f for f in _ARGUMENTS if getattr(part, f) != getattr(entry, f)]
        if these:
            yield from _check_arguments(name, part, these, own)
    for field in ("functional", "counted_as", "each"):
        other = getattr(entry, field)
        if field == "each" and other:
            other = name.replace("_foreach_", "") if other == THE_SAME else f"aten::{other}"
        if other and other not in ops and other.partition(".")[0] not in overloads:
            text = f"`{field}` names {other}, which is no op of PyTorch{nearest(other, overloads)}"
            yield Problem(name, text)


def _check_arguments(
    name: str, entry: Entry, ops: "Sequence[NativeOp]", fields: Iterable[str] = _ARGUMENTS
) -> Iterator[Problem]:
    tensors = {a for op in ops for a in op.tensor_arguments}
    for field in fields:
        numbers = field == "size_arguments"
        known = (
            {a for op in ops for a in set(_arguments(op.schema)) - set(op.tensor_arguments)}
            if numbers and entry.size_arguments
            else tensors
        )
        kind = "number" if numbers else "tensor argument"
        for given in getattr(entry, field):
            argument = given.partition(" ")[0]
            if argument not in known:
                text = f"`{field}` names {argument}, which is no {kind} of {ops[0].schema}"
                yield Problem(name, text + nearest(argument, known))
            elif field == "mutates" and all(argument in op.mutable_arguments for op in ops):
                yield Problem(
                    name, f"`mutates` names {argument}, as the schema does already; drop it"
                )


@functools.cache
def _arguments(schema: str) -> tuple[str, ...]:
    import torch

    return tuple(a.name for a in torch._C.parse_schema(schema).arguments)


def _is_implemented(op: "NativeOp", have: set[str]) -> bool:
    # In-place and out= variants are made of the functional op.
    return op.name in have or (op.variants.functional or "") in have


def _derived(name: str, ops: "Mapping[str, NativeOp]", table: Mapping[str, Entry]) -> bool:
    """Whether it is a variant of an op with a route."""
    return name in ops and any(m and of(m, table).route for m in ops[name].variants)
