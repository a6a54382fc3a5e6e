"""Weights of an exported graph that are laid out anew, once, as kernels read them."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Hashable

import torch
from torch import Tensor
from torch.fx import Node

from torch_tenon.exporting.held import Graph, Held
from torch_tenon.ir.program import PANEL


class LaidOut:
    """The weights that were made for the methods of a program: equal ones are one."""

    def __init__(self) -> None:
        self._of_contents: dict[Hashable, Tensor] = {}
        self._of_keys: dict[Hashable, Tensor] = {}

    def equal(self, x: Tensor) -> Tensor:
        """`x`, which is dense and on the host, or an earlier one that is the same in dtype, sizes,
        strides and contents."""
        x = x.resolve_conj().resolve_neg()
        data = x.as_strided((x.numel(),), (1,)).view(torch.uint8).numpy()
        key = x.dtype, tuple(x.shape), x.stride(), hashlib.sha256(data.data).digest()
        return self._of_contents.setdefault(key, x)

    def made(self, key: Hashable, make: Callable[[], Tensor]) -> Tensor:
        """What `make` gave for this key the first time."""
        if key not in self._of_keys:
            self._of_keys[key] = make()
        return self._of_keys[key]


def in_panels(rows: Tensor) -> Tensor:
    """A matrix (K, A) as panels (A / PANEL, K, PANEL), the last one filled up with zeros."""
    rows = torch.nn.functional.pad(rows, (0, -rows.shape[1] % PANEL))
    return rows.reshape(len(rows), -1, PANEL).transpose(0, 1).contiguous()


def enter(graph: Graph, like: Held, kind: str, tensor: Tensor) -> Node:
    """A new weight, made of another one. Weights that differ have different names, as where norms
    of their own follow one convolution that is called several times."""
    others = {p.name for p in graph.placeholders if isinstance(p, Held) and p.tensor is not tensor}
    names = (f"{like.name}.{kind}{k or ''}" for k in itertools.count())
    name = next(n for n in names if n not in others)
    with graph.module.graph.inserting_after(like.node):
        node = graph.module.graph.placeholder(f"{like.node.name}_{kind}")
    node.meta["val"] = like.node.meta["val"].fake_mode.from_tensor(tensor, static_shapes=True)
    at = next(k for k, p in enumerate(graph.placeholders) if p.node is like.node)
    graph.placeholders.insert(at + 1, Held(name, node, tensor))
    return node
