"""The manifest, `manifest.yaml`: what the device overrides, by which route, and its check.

Reading it is on the path of `import torch`, where loading a YAML parser would be most of the work:
the build writes what is in it beside it as JSON, with the hash of the text that this was. The check
is for `tenon ops --check` and loads PyTorch's code generator.
"""

import difflib
import functools
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch_tenon.ops import native

MANIFEST = Path(__file__).with_name("manifest.yaml")
ROUTES = ("lowered", "library", "kernel", "decomposed", "fallback")

_QUALIFIED = re.compile(r"[A-Za-z_]\w*::[A-Za-z_]\w*(\.[A-Za-z_]\w*)?")
_FIELDS = (
    "op",
    "route",
    "why",
    "host_arguments",
    "mutates",
    "host_layouts",
    "replaces",
    "run_time_numbers",
    "whole",
)


class ManifestError(ValueError):
    """The manifest cannot be read; the text says which entry and what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One op of the manifest; the fields are described at the top of `manifest.yaml`."""

    op: str
    route: str
    why: str = ""
    host_arguments: tuple[str, ...] = ()
    mutates: tuple[str, ...] = ()
    host_layouts: tuple[str, ...] = ()
    replaces: bool = False
    run_time_numbers: bool = False
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Problem:
    """What the check found wrong with one op, and what to do about it."""

    op: str
    text: str

    def __str__(self) -> str:
        return f"{self.op}: {self.text}"


def nearest(name: str, names: Iterable[str]) -> str:
    """`"; the nearest is NAME"` for the most similar of `names`, or nothing if none is similar."""
    found = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"; the nearest is {found[0]}" if found else ""


def read(path: Path = MANIFEST) -> list[Entry]:
    """The entries of a manifest in their order.

    Raises ManifestError, naming the entry, for YAML that is not a list of entries of known fields.
    """
    text = path.read_bytes()
    rows = _built(path.with_suffix(".json"), text)
    if rows is None:
        rows = _parsed(text, path)
    if not isinstance(rows, list):
        raise ManifestError(f"{path} must be a list of entries, not {type(rows).__name__}")
    return [_entry(row, f"entry {i} of {path.name}") for i, row in enumerate(rows, 1)]


def _built(path: Path, text: bytes) -> object:
    """What the build found in `text`; None where it has not seen it."""
    try:
        built = json.loads(path.read_bytes())
        return built["rows"] if built["of"] == hashlib.sha256(text).hexdigest() else None
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def _parsed(text: bytes, path: Path) -> object:
    import yaml

    try:
        return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError as error:
        raise ManifestError(f"{path} is not valid YAML: {error}") from error


def _entry(row: object, place: str) -> Entry:
    if not isinstance(row, dict) or not isinstance(row.get("op"), str):
        raise ManifestError(f"{place} must be a mapping with an `op`, and is {row!r}")
    op = row["op"]
    place = f"{place}, {op}:"
    if not _QUALIFIED.fullmatch(op):
        raise ManifestError(f"{place} an op is written namespace::name or namespace::name.overload")
    for field in row:
        if field not in _FIELDS:
            raise ManifestError(f"{place} unknown field {field!r}{nearest(str(field), _FIELDS)}")
    route = row.get("route")
    if route not in ROUTES:
        raise ManifestError(
            f"{place} `route` must be one of {', '.join(ROUTES)}, and is {route!r}"
            f"{nearest(str(route), ROUTES)}"
        )
    why = row.get("why", "")
    if not isinstance(why, str) or "\n" in why:
        raise ManifestError(f"{place} `why` must be one line of text")
    arguments = {}
    for field in ("host_arguments", "mutates", "host_layouts"):
        names = row.get(field, [])
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ManifestError(f"{place} `{field}` must be a list of names")
        arguments[field] = tuple(names)
    flags = {}
    for field in ("replaces", "run_time_numbers", "whole"):
        flags[field] = row.get(field, False)
        if not isinstance(flags[field], bool):
            raise ManifestError(f"{place} `{field}` must be true or false")
    return Entry(
        op,
        route,
        why,
        **arguments,
        replaces=flags["replaces"],
        run_time_numbers=flags["run_time_numbers"],
        whole=flags["whole"],
    )


@functools.cache
def load() -> Mapping[str, Entry]:
    """The manifest by op. Raises ManifestError as `read` does, and for an op listed twice."""
    entries = {}
    for entry in read():
        if entry.op in entries:
            raise ManifestError(f"{entry.op} is listed twice in {MANIFEST.name}")
        entries[entry.op] = entry
    return entries


def check(
    entries: Iterable[Entry],
    registered: set[str] | None,
    decompositions: set[str],
    lowerings: set[str],
    library: set[str] | None,
) -> list[Problem]:
    """What is wrong with a manifest, in its order, then by op.

    `registered` are the ops with a kernel registered for the device, `decompositions` and
    `lowerings` the keys of those tables, `library` the ops linked to a library kernel; None where
    that cannot be known here, which skips the part of the check that needs it. Ops outside
    `aten` cannot be looked up in PyTorch's list: of them only the route is checked.
    """
    from torch_tenon.ops import native

    entries = list(entries)
    ops = native.load()
    listed = Counter(entry.op for entry in entries)
    problems = [
        Problem(op, f"is listed {count} times; keep one entry")
        for op, count in listed.items()
        if count > 1
    ]
    for entry in entries:
        op = ops.get(entry.op)
        if op is not None:
            problems += _check_arguments(entry, op)
        elif entry.op.startswith("aten::"):
            problems.append(Problem(entry.op, f"is no op of PyTorch{nearest(entry.op, ops)}"))

    implementations = {
        "kernel": registered,
        "library": library,
        "decomposed": decompositions,
        "lowered": lowerings,
    }
    words = {
        "kernel": "a kernel registered for the device",
        "library": "a library kernel",
        "decomposed": "a decomposition",
        "lowered": "a lowering",
    }
    for entry in entries:
        have = implementations.get(entry.route)
        if entry.route in implementations and have is not None and entry.op not in have:
            problems.append(
                Problem(
                    entry.op,
                    f"has route {entry.route} and no {words[entry.route].removeprefix('a ')}"
                    f"{nearest(entry.op, have)}; implement it or change its route",
                )
            )

    routes = {entry.op: entry.route for entry in entries}
    for route in ("lowered", "decomposed", "library", "kernel"):
        for name in sorted(implementations[route] or ()):
            if name in routes:
                # Every route but fallback may end in a registered kernel.
                wrong = routes[name] != route and route in ("lowered", "decomposed")
                if wrong or (routes[name] == "fallback" and route == "library"):
                    problems.append(
                        Problem(name, f"has {words[route]}, but route {routes[name]}; change one")
                    )
            elif name.startswith("aten::") and not _derived(name, ops, routes):
                problems.append(
                    Problem(name, f"has {words[route]} and no entry{nearest(name, routes)}; add it")
                )
    return problems


def _check_arguments(entry: Entry, op: "native.NativeOp") -> list[Problem]:
    problems = []
    for field in ("host_arguments", "mutates"):
        for name in getattr(entry, field):
            if name not in op.tensor_arguments:
                text = f"`{field}` names {name}, which is no tensor argument of {op.schema}"
                problems.append(Problem(entry.op, text + nearest(name, op.tensor_arguments)))
            elif field == "mutates" and name in op.mutable_arguments:
                problems.append(
                    Problem(
                        entry.op, f"`mutates` names {name}, as the schema does already; drop it"
                    )
                )
    return problems


def _derived(name: str, ops: "Mapping[str, native.NativeOp]", listed: Iterable[str]) -> bool:
    # A variant of a listed op is made from it.
    return name in ops and any(member in listed for member in ops[name].variants if member)
