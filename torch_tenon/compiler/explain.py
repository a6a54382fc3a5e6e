"""A plan in words: its kernels and calls, memory traffic, and fusions that did not happen."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields

from torch_tenon.compiler.facts import call_bytes, call_detail, kernel_detail, loops_of
from torch_tenon.compiler.kernel import Kernel
from torch_tenon.compiler.plan import Plan
from torch_tenon.compiler.schedule import Group
from torch_tenon.ir.index import product
from torch_tenon.ir.values import Storage, size_hint

MOST_REASONS = 20


@dataclass(frozen=True, slots=True)
class Summary:
    """A plan in numbers: its steps, bytes, and the seconds that making it took, by stage.

    `bytes_by_op` is what its calls would read and write one by one, `bytes_moved` what the kernels
    and calls of the plan do. `steps` has for each its ops, its sizes and dtypes, the recorded calls
    that it computes, the name of its code in the cache (of a call its route), and the steps whose
    results it reads; `rejected` the pairs that were not fused, with the reason, as far as there are
    few.
    """

    kernels: int
    calls: int
    bytes_by_op: int
    bytes_moved: int
    peak_bytes: int
    seconds: Mapping[str, float]
    fallbacks: Mapping[str, str]
    steps: Sequence[tuple[str, str, list[int], str, list[int]]] = ()
    rejected: Sequence[tuple[str, str, str]] = ()

    def as_json(self) -> str:
        """For `of_json`."""
        return json.dumps(asdict(self))

    @classmethod
    def of_json(cls, text: str | bytes) -> Summary | None:
        """What `as_json` gave; None for an empty text."""
        return cls(**json.loads(text)) if text else None


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphSummary(Summary):
    """One compiled graph; `str` of it is its page. `kind` is forward, backward or inference.

    `least_bytes` is what any plan has to move; `bytes_by_op`, which nobody has counted, is 0.
    """

    kind: str
    least_bytes: int
    page: str

    def __str__(self) -> str:
        return self.page


def summarise(
    plan: Plan, bytes_by_op: int, fallbacks: Mapping[str, str], seconds: float
) -> Summary:
    """The plan in numbers; `seconds` is what it took from the program's first node on."""
    stages = {"program": seconds - sum(plan.seconds.values()), **plan.seconds}
    kernels = [s.kernel for s in plan.steps if s.kernel is not None]
    calls = [s.call for s in plan.steps if s.call is not None]
    moved = size_hint(sum(k.bytes_moved for k in kernels) + sum(map(call_bytes, calls)))
    ops = {n.name: n.origin or n.name for n in plan.program.nodes}
    return Summary(
        len(kernels),
        len(calls),
        bytes_by_op,
        moved,
        plan.peak_bytes,
        stages,
        {**fallbacks, **plan.why_on_host},
        _steps(plan),
        [(ops[a], ops[b], why) for a, b, why in plan.schedule.rejected[:MOST_REASONS]],
    )


def summarise_graph(kind: str, plan: Plan, fallbacks: Mapping[str, str]) -> GraphSummary:
    """The plan of a compiled graph in numbers and in words."""
    summary = summarise(plan, 0, fallbacks, 0.0)
    known = {f.name: getattr(summary, f.name) for f in fields(summary)}
    known["seconds"] = plan.seconds
    page = describe(plan, fallbacks)
    return GraphSummary(**known, kind=kind, least_bytes=least_bytes(plan), page=page)


def _steps(plan: Plan) -> list[tuple[str, str, list[int], str, list[int]]]:
    found: list[tuple[str, str, list[int], str, list[int]]] = []
    writers: dict[Storage, int] = {}
    kernels = 0
    for k, step in enumerate(plan.steps):
        inputs = sorted({writers[s] for s in step.storages() if s in writers})
        if step.kernel is not None:
            named = plan.files is not None and kernels < len(plan.files)
            code = plan.files[kernels].symbol if named and plan.files else ""
            detail = kernel_detail(step.kernel, step.group)
            found.append((step.kernel.origin, detail, step.kernel.calls, code, inputs))
            kernels += 1
        else:
            assert step.call is not None
            name = step.call.origin or step.call.name
            found.append((name, call_detail(step.call), step.call.calls, step.call.route, inputs))
        writers |= {b.storage: k for n in step.group.nodes() for b in n.outputs}
    return found


def least_bytes(plan: Plan) -> int:
    """What any plan has to move: each input and output of the program once.

    A view counts as the elements that it shows; an input that nothing reads counts all the same.
    """
    values = [*plan.program.inputs, *plan.program.outputs]
    return sum(size_hint(product(v.sizes)) * v.dtype.itemsize for v in values)


def describe(plan: Plan, fallbacks: Mapping[str, str]) -> str:
    """The page of one compiled graph.

    `fallbacks` says why an op is a call on the host rather than loops. Bytes are what the kernels
    and calls name; what stays in a cache between two of them is counted too.
    """
    lines = []
    moved = 0
    for step in plan.steps:
        if step.kernel is not None:
            moved += size_hint(step.kernel.bytes_moved)
            lines.append(_kernel_line(step.kernel, step.group))
        else:
            assert step.call is not None
            size = size_hint(call_bytes(step.call))
            moved += size
            lines.append(f"  {step.call.route:14} {step.call.name} ({format_bytes(size)})")
    least = least_bytes(plan)
    ratio = f", {moved / least:.2f} times the least possible {format_bytes(least)}" if least else ""
    seconds = ", ".join(f"{k} {1000 * s:.1f} ms" for k, s in plan.seconds.items())
    lines.append(
        f"  moves {format_bytes(moved)}{ratio}; peak memory {format_bytes(plan.peak_bytes)}"
    )
    lines.append(f"  {len(plan.program.nodes)} nodes in {len(plan.steps)} steps; {seconds}")
    for op, why in {**fallbacks, **plan.why_on_host}.items():
        lines.append(f"  on the host: {op}: {why}")
    for first, second, why in plan.schedule.rejected[:MOST_REASONS]:
        lines.append(f"  not fused: {first} with {second}: {why}")
    hidden = len(plan.schedule.rejected) - MOST_REASONS
    if hidden > 0:
        lines.append(f"  and {hidden} more pairs")
    return "\n".join(lines)


def _kernel_line(k: Kernel, group: Group) -> str:
    size = format_bytes(size_hint(k.bytes_moved))
    if k.code is not None:
        return f"  kernel {k.layout:7} {k.code.entry}: {k.origin} ({size})"
    passes = max(m.stage for m in group.members) + 1
    nodes = f"{len(list(group.nodes()))} nodes, {max(passes, 1)} passes"
    return f"  kernel {k.layout:7} {loops_of(k, group)}: {k.origin} ({nodes}, {size})"


def format_bytes(n: float) -> str:
    """`1536` as `1.5 KiB`, `-1536` as `-1.5 KiB`."""
    for unit in ("B", "KiB", "MiB"):
        if abs(n) < 1024:
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1024
    return f"{n:.1f} GiB"
