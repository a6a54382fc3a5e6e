"""What a graph's nodes are: whose memory, on which device, and what is there for order alone."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

with_effects = torch.ops.higher_order.with_effects


def memory_of(node: Node) -> int | None:
    """What tells whether two nodes of a trace share memory; None for a node without."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    return value.untyped_storage()._cdata


def is_of_device(value: Any) -> bool:
    """Whether a node's value is a tensor of a tenon device, or several, one of which is."""
    if isinstance(value, list | tuple):
        return any(map(is_of_device, value))
    return isinstance(value, torch.Tensor) and value.device.type == "tenon"


def is_token(n: Node) -> bool:
    """Whether a placeholder is only there to order calls that have effects."""
    return any(u.target is with_effects and u.args[0] is n for u in n.users)
