"""Ops that the target's library runs: each becomes a call on whole tensors.

Which ones these are the target's backend says (`Backend.library`); without a backend there are
none.
"""

from __future__ import annotations

from typing import Any

import torch

from torch_tenon import device
from torch_tenon.ops import manifest
from torch_tenon.ops.lowerings.table import LINKED, Build, are_empty
from torch_tenon.ops.variants import overload
from torch_tenon.pytorch.versions import is_removed


def enter_library(library: frozenset[str]) -> None:
    """Links every functional overload of these ops."""
    for name in sorted(library):
        if is_removed(name):
            continue
        namespace, _, base = name.partition("::")
        packet = getattr(getattr(torch.ops, namespace), base)
        for suffix in packet.overloads():
            target = getattr(packet, suffix)
            if not target._schema.is_mutable and not suffix.startswith("dimname"):
                _enter(target, target)
    for name, entry in manifest.load().items():
        if entry.in_programs in library:
            _enter(overload(name), overload(entry.in_programs))


def _enter(op: Any, target: Any) -> None:
    def lower(b: Build, *args: Any, **keywords: Any) -> Any:
        # Of results without elements nobody reads any: the call is for what the kernel refuses.
        route = "effect" if are_empty(b.results) else "library"
        results = b.call(target, args, keywords, route)
        return results if len(b.results) > 1 else results[0]

    LINKED[str(op)] = lower


_backend = device.backend()
if _backend is not None:
    enter_library(_backend.library)
