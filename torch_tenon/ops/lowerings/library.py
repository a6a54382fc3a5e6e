"""Ops that the target's library runs: each becomes a call on whole tensors.

Which ones these are the target's backend says (`Backend.library`); without a backend there are
none.
"""

from __future__ import annotations

from typing import Any

import torch

from torch_tenon import device
from torch_tenon.ops.lowerings.table import LOWERINGS, WHOLE, Build
from torch_tenon.pytorch_versions import is_removed

# What PyTorch calls attention on a device of which it knows nothing, and the op that stands for it
# in a program, whatever the target.
ATTENTION = {
    "_scaled_dot_product_flash_attention_for_cpu": "tenon::attention",
    "_scaled_dot_product_flash_attention_for_cpu_backward": "tenon::attention_backward",
}


def enter_library(library: frozenset[str]) -> None:
    """Links every functional overload of these ops."""
    for name in sorted(library):
        if is_removed(name):
            continue
        namespace, _, base = name.partition("::")
        packet = getattr(getattr(torch.ops, namespace), base)
        for overload in packet.overloads():
            target = getattr(packet, overload)
            if not target._schema.is_mutable and not overload.startswith("dimname"):
                _enter(target, target)
    for name, neutral in ATTENTION.items():
        if neutral in library:
            packet = getattr(torch.ops.tenon, neutral.removeprefix("tenon::"))
            _enter(getattr(torch.ops.aten, name).default, packet.default)


def _enter(op: Any, target: Any) -> None:
    def lower(b: Build, *args: Any, **keywords: Any) -> Any:
        results = b.call(target, args, keywords, "library")
        return results if len(b.results) > 1 else results[0]

    LOWERINGS[str(op)] = lower
    WHOLE.add(str(op))


_backend = device.backend()
if _backend is not None:
    enter_library(_backend.library)
