"""The table of ops, `manifest.yaml`: what is known of an op, and the check of that.

Reading it is on the path of `import torch`, where loading a YAML parser would be most of the work:
the build writes what is in it beside it as JSON, with the hash of the text that this was. The check
is for `tenon ops --check` and loads PyTorch's code generator.
"""

import difflib
import functools
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

MANIFEST = Path(__file__).with_name("manifest.yaml")
ROUTES = ("lowered", "library", "kernel", "decomposed", "fallback")

_QUALIFIED = re.compile(r"[A-Za-z_]\w*::[A-Za-z_]\w*")
_OVERLOAD = re.compile(r"[A-Za-z_]\w*")


class ManifestError(ValueError):
    """The manifest cannot be read; the text says which entry and what is wrong with it."""


class Entry(NamedTuple):
    """What is known of some ops; the fields are described at the top of `manifest.yaml`.

    `ops` are qualified names without overloads. `overloads` has the entries of those overloads that
    differ, in which what holds for all of them stands again.
    """

    ops: tuple[str, ...] = ()
    route: str = ""
    why: str = ""
    at_once: bool = False
    decomposition: str = ""
    decomposition_except: tuple[str, ...] = ()
    batch_norm: bool = False
    in_order: bool = False
    fills_in_order: bool = False
    traced_whole: bool = False
    lies_as_on_cpu: str = ""
    index_check: str = ""
    each: str = ""
    library: str = ""
    in_programs: str = ""
    of_runtime: bool = False
    functional: str = ""
    counted_as: str = ""
    removed_in: str = ""
    host_arguments: tuple[str, ...] = ()
    mutates: tuple[str, ...] = ()
    host_layouts: tuple[str, ...] = ()
    shares: bool = False
    replaces: bool = False
    partial: bool = False
    whole: bool = False
    flat_out: bool = False
    sized_by_out: bool = False
    takes_nothing: bool = False
    uninitialised: bool = False
    quantised: bool = False
    of_memory: bool = False
    random: bool = False
    run_time_numbers: str = ""
    numbers_fit: bool = False
    ends_range: bool = False
    takes: str = ""
    unknown_reduction: str = ""
    argument_dtypes: tuple[str, ...] = ()
    unsigned: bool = False
    product: str = ""
    complex: str = ""
    recorded: bool = False
    sizes: str = ""
    size_arguments: tuple[str, ...] = ()
    size_rule: str = ""
    overloads: Mapping[str, Any] = MappingProxyType({})


PYTORCH = "pytorch"
"""As `decomposition`: plans take PyTorch's."""
EXPORTED = "exported"
"""As `decomposition`: the op is taken apart only where PyTorch's kernel is not there."""
NOTHING = Entry()
"""What is known of an op that the table does not name."""

_KINDS: dict[str, Any] = {
    name: kind if kind in (str, bool) else list
    for name, kind in Entry.__annotations__.items()
    if name != "overloads"
}
_VALUES: dict[str, tuple[str, ...]] = {
    "route": ROUTES,
    "decomposition": (PYTORCH, EXPORTED),
    "library": ("convolution", "linear algebra", "Fourier transforms", "sorting", "attention"),
    "run_time_numbers": ("when_they_change", "in_graphs", "always"),
    "lies_as_on_cpu": ("kernel", "operands", "input", "in order", "images"),
    "takes": ("fractions", "numbers"),
    "unknown_reduction": ("refused", "sum"),
    "complex": ("whole", "parts"),
    "sizes": ("follow", "batch"),
    "host_layouts": ("Sparse", "SparseCsr", "NestedTensor", "Quantized"),
}
THE_SAME = "the same"
"""As `each`: the op on one tensor is called as the op on lists is."""


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


def misspelt(name: str, names: Sequence[str]) -> str:
    """Which of `names` was meant by one that is hardly another word; empty where none was."""
    return next(iter(difflib.get_close_matches(name, names, n=1, cutoff=0.75)), "")


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
    names = row.get("ops") if isinstance(row, dict) else None
    if not isinstance(row, dict) or not isinstance(names, list) or not names:
        raise ManifestError(f"{place} must be a mapping with a list of `ops`, and is {row!r}")
    ops = tuple(name if "::" in str(name) else f"aten::{name}" for name in names)
    place = f"{place}, {ops[0]}:"
    for op in ops:
        if not _QUALIFIED.fullmatch(op):
            raise ManifestError(
                f"{place} an op is written namespace::name, or as its name where it is aten's, "
                f"without an overload, and not {op!r}"
            )
    facts = _facts(row, place, ("ops", "overloads"))
    overloads = row.get("overloads", {})
    if not isinstance(overloads, dict):
        raise ManifestError(f"{place} `overloads` must be a mapping from names of overloads")
    found: dict[str, Entry] = {}
    for key, more in overloads.items():
        for name in str(key).split():
            if not _OVERLOAD.fullmatch(name) or name in found or not isinstance(more, dict):
                raise ManifestError(f"{place} `overloads` has {name!r} twice, or nothing of it")
            found[name] = Entry(ops, **facts | _facts(more, f"{place} overload {name}:", ()))
    return Entry(ops, **facts, overloads=found)


def _facts(row: Mapping[Any, Any], place: str, others: Sequence[str]) -> dict[str, Any]:
    """The fields of an entry, or of overloads within one, but for some others that it may have."""
    found = {}
    for name, value in row.items():
        if name in others:
            continue
        kind = _KINDS.get(name) if name != "ops" else None
        if kind is None:
            raise ManifestError(f"{place} unknown field {name!r}{nearest(str(name), _KINDS)}")
        if kind is list:
            if not isinstance(value, list) or not all(isinstance(x, str) for x in value):
                raise ManifestError(f"{place} `{name}` must be a list of names")
            value = tuple(value)
        elif kind is bool and not isinstance(value, bool):
            raise ManifestError(f"{place} `{name}` must be true or false")
        elif kind is str and (not isinstance(value, str) or "\n" in value):
            raise ManifestError(f"{place} `{name}` must be one line of text, and is {value!r}")
        allowed = _VALUES.get(name, ())
        for x in value if kind is list else (value,):
            if allowed and x not in allowed:
                raise ManifestError(
                    f"{place} `{name}` must be one of {', '.join(allowed)}, and is {x!r}"
                    f"{nearest(x, allowed)}"
                )
        found[name] = value
    return found


@functools.cache
def load() -> Mapping[str, Entry]:
    """The manifest by op, without overloads. Raises ManifestError as `read` does, and for an op
    that is named twice."""
    entries: dict[str, Entry] = {}
    for entry in read():
        for op in entry.ops:
            if op in entries:
                raise ManifestError(f"{op} is named twice in {MANIFEST.name}")
            entries[op] = entry
    return entries


def of(op: str, entries: Mapping[str, Entry] | None = None) -> Entry:
    """What is known of an op with its overload (`aten::add_.Tensor`): of that overload, of the
    name, or of the functional op of that name."""
    base, _, overload = op.partition(".")
    entries = load() if entries is None else entries
    entry = entries.get(base) or entries.get(base.removesuffix("_"), NOTHING)
    return entry.overloads.get(overload or "default", entry)


def names_with(field: str, value: object = True) -> Iterator[str]:
    """The ops, without overloads, that a field says this of."""
    return (op for op, entry in load().items() if getattr(entry, field) == value)


def routed(entries: Mapping[str, Entry]) -> Iterator[tuple[str, Entry]]:
    """Every op that is given a route, by its name or, where that is an overload's, with it."""
    for op, entry in entries.items():
        if entry.route:
            yield op, entry
        for overload, known in entry.overloads.items():
            if known.route != entry.route:
                yield (op if overload == "default" else f"{op}.{overload}"), known
