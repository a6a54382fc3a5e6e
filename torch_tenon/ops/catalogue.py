"""What can be said of an op: how it runs on the device, and what PyTorch asks of a backend.

This is what `tenon ops` shows. The manifest says what the device overrides; the rest follows from
what PyTorch has: an op composed of others runs as those, and one with a CPU kernel falls back.
"""

import functools
import importlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from torch_tenon.ops import manifest, native
from torch_tenon.ops.families import FAMILIES, family
from torch_tenon.ops.kept import kept
from torch_tenon.ops.native import NativeOp

COMPOSED = "composed"
"""Not a route of the device's own: PyTorch composes the op of others, which have routes."""
NONE = "none"
"""Neither the device nor PyTorch's CPU has a kernel."""


class UnknownOp(LookupError):
    """No op has that name; the text names the nearest."""


@dataclass(frozen=True)
class Description:
    """One op, as `tenon ops NAME` shows it."""

    op: str
    schema: str
    route: str
    reason: str
    compiled: str
    """In a compiled graph: `lowered`, `library`, `decomposed`, or `fallback`, a call."""
    registration: str
    """`required` of a backend that wants the op, or `optional`: PyTorch composes it. Empty for a
    custom op."""
    variants: dict[str, str]
    autograd: str
    host_arguments: tuple[str, ...]
    mutates: tuple[str, ...]
    tags: tuple[str, ...]
    facts: dict[str, str]
    """What else the table says of it, by field of `manifest.yaml`."""

    def as_dict(self) -> dict[str, object]:
        """The same as plain data, for JSON."""
        return asdict(self)


def route(op: NativeOp, entries: Mapping[str, manifest.Entry]) -> tuple[str, str]:
    """The route of an op and the reason for it, in a few words."""
    ops, functional = native.load(), op.variants.functional
    entry = manifest.of(op.name, entries)
    if entry.route and op.name.partition(".")[0] in entries:
        return entry.route, entry.why or "listed in the manifest"
    if functional is not None and (route := manifest.of(functional, entries).route):
        return route, f"derived from {functional}"
    structured = op.composite == "CompositeExplicitAutogradNonFunctional"
    out = ops.get(op.variants.out or "")
    if "CPU" in op.backends or (structured and out is not None and "CPU" in out.backends):
        return "fallback", "not listed, and the CPU has a kernel"
    layouts = [key.removesuffix("CPU").lower() for key in op.backends if key.endswith("CPU")]
    if op.composite is None and layouts:
        return "fallback", f"not listed, and the CPU has a kernel for {', '.join(layouts)} tensors"
    if _runs_whole(op):
        return "fallback", "not listed, and the CPU runs in one call what PyTorch composes"
    if op.composite is not None:
        return COMPOSED, f"of other ops, by PyTorch's {op.composite} kernel"
    return NONE, "not listed, and the CPU has no kernel"


def _runs_whole(op: NativeOp) -> bool:
    # As `host_has_whole` in csrc/pytorch/record/dispatch.cpp has it.
    return (
        op.composite == "CompositeExplicitAutograd"
        and not op.makes_views
        and not op.takes_device
        and not {"nondeterministic_seeded", "inplace_view"} & set(op.tags)
    )


def compiled(op: NativeOp) -> str:
    """How an op runs inside a program: as loops, as a linked kernel, as other ops, as a call.

    In-place and `out=` variants become functional ops first.
    """
    import torch

    from torch_tenon.ops.compositions import decompositions
    from torch_tenon.ops.lowerings.table import LINKED, find

    known = decompositions()  # loads the table
    name, _, overload = (op.variants.functional or op.name).removeprefix("aten::").partition(".")
    target = getattr(getattr(torch.ops.aten, name), overload or "default")
    if find(target) is not None:
        return "library" if str(target) in LINKED else "lowered"
    return (
        "decomposed"
        if target in known or op.composite == "CompositeImplicitAutograd"
        else "fallback"
    )


@functools.cache
def _compiled_ways() -> Mapping[str, str]:
    # Of all at once, since loading PyTorch takes longer than they do.
    found: Mapping[str, str] = kept(
        "compiled", lambda: {name: compiled(op) for name, op in native.load().items()}
    )
    return found


def describe(op: NativeOp, entries: Mapping[str, manifest.Entry]) -> Description:
    """Everything that is known of one op without running it."""
    way, reason = route(op, entries)
    entry = manifest.of(op.name, entries)
    return Description(
        op=op.name,
        schema=op.schema,
        route=way,
        reason=reason,
        compiled=_compiled_ways()[op.name],
        registration="required" if op.required else "optional",
        variants={kind: name for kind, name in op.variants._asdict().items() if name},
        autograd=op.autograd,
        host_arguments=entry.host_arguments,
        mutates=entry.mutates,
        tags=op.tags,
        facts=_facts(entry),
    )


def describe_custom(name: str) -> Description:
    """The same of a custom op with kernels of its own; `compiled` says by which it runs.

    Raises UnknownOp, naming the nearest.
    """
    from torch_tenon.ops.custom import CUSTOM_OPS

    if name not in CUSTOM_OPS:
        raise UnknownOp(f"no op {name} is declared{manifest.nearest(name, CUSTOM_OPS)}")
    op = CUSTOM_OPS[name]
    devices = ", ".join(dict.fromkeys(s.code.device for s in op.signatures)) or "none"
    return Description(
        op=name,
        schema=str(op.schema),
        route=op.route(),
        reason=op.way(),
        compiled=f"{op.route()}; kernels for: {devices}",
        registration="",
        variants={},
        autograd="declared" if op.has_gradient else "none",
        host_arguments=(),
        mutates=(),
        tags=(),
        facts={},
    )


def _facts(entry: manifest.Entry) -> dict[str, str]:
    """What else the table says of an op."""
    told = {"ops", "overloads", "route", "why", "host_arguments", "mutates"}
    found = {}
    for name, value in entry._asdict().items():
        if name not in told and value:
            text = ", ".join(value) if isinstance(value, tuple) else str(value)
            found[name] = "yes" if value is True else text
    return found


def find(name: str) -> list[NativeOp]:
    """The ops that a person means by `name`, with `aten::` and the overload as they like.

    `lerp.Scalar` is one op; `lerp` is every overload, in place and `out=` too, as long as no
    overload is named. Raises UnknownOp, naming the nearest.
    """
    ops = native.load()
    qualified = name if "::" in name else f"aten::{name}"
    if "." in qualified:
        if qualified in ops:
            return [ops[qualified]]
    else:
        bases = {qualified} if qualified.endswith("_") else {qualified, f"{qualified}_"}
        found = [op for op in ops.values() if op.name.partition(".")[0] in bases]
        if found:
            return found
    candidates = ops if "." in qualified else {op.partition(".")[0] for op in ops}
    raise UnknownOp(f"PyTorch has no op {qualified}{manifest.nearest(qualified, candidates)}")


def counts(entries: Mapping[str, manifest.Entry]) -> dict[str, tuple[int, int]]:
    """For each route, how many ops the manifest lists with it, and how many of all have it."""
    found = {way: [0, 0] for way in (*manifest.ROUTES, COMPOSED, NONE)}
    for _, entry in manifest.routed(entries):
        found[entry.route][0] += 1
    for op in native.load().values():
        found[route(op, entries)[0]][1] += 1
    return {way: (listed, total) for way, (listed, total) in found.items()}


def counts_by_family(entries: Mapping[str, manifest.Entry]) -> dict[str, dict[str, int]]:
    """For each family of ops, how many of them take each route."""
    ops = native.load()
    found = {name: dict.fromkeys((*manifest.ROUTES, COMPOSED, NONE), 0) for name in FAMILIES}
    for op in ops.values():
        functional = ops.get(op.variants.functional or "", op)
        found[family(op, functional)][route(op, entries)[0]] += 1
    return found


def registered() -> set[str]:
    """The ops that the device has kernels of its own for, by the dispatcher; PyTorch must have
    loaded the device. Reference execution is not one: it is registered for all that falls back.
    """
    import torch

    found = set()
    for layout in ("", "Sparse", "SparseCsr", "Quantized", "NestedTensor"):
        key = f"{layout}PrivateUse1"
        for op in torch._C._dispatch_get_registrations_for_dispatch_key(key):
            lines = torch._C._dispatch_dump(op).splitlines()
            (line,) = (line for line in lines if line.startswith(f"{key}: "))
            if "by reference" not in line:
                found.add(op)
    return found


@functools.cache
def cpu_dtypes() -> Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    """For each op without its overload: the dtypes that the CPU has it in, forward and backward.

    From PyTorch's op database. Raises ModuleNotFoundError when the packages that the database
    needs (the extra `conformance`) are not installed.
    """
    rows = kept("dtypes", _database_dtypes)
    return {name: (tuple(forward), tuple(backward)) for name, (forward, backward) in rows.items()}


def _database_dtypes() -> dict[str, tuple[list[str], list[str]]]:
    # What the database imports first of all; it would notice after seconds.
    importlib.import_module("expecttest")
    from torch.testing._internal.common_methods_invocations import op_db

    found: dict[str, tuple[set[str], set[str]]] = {}
    for info in op_db:
        # `linalg.norm` is aten::linalg_norm; `nn.functional.relu` is aten::relu.
        spelled = info.name.removeprefix("nn.functional.").replace(".", "_")
        for name in {info.aten_name or spelled, spelled}:
            forward, backward = found.setdefault(f"aten::{name}", (set(), set()))
            forward |= {str(dtype).removeprefix("torch.") for dtype in info.dtypes}
            if info.supports_autograd:
                backward |= {
                    str(dtype).removeprefix("torch.")
                    for dtype in info.backward_dtypes
                    if dtype.is_floating_point or dtype.is_complex
                }
    return {name: (sorted(f), sorted(b)) for name, (f, b) in found.items()}
