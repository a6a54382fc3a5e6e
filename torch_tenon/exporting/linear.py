"""Products with the weights of linear layers, which are laid out once as the driver reads them.

A driver of products packs its right operand into panels, so that its inner loop reads memory in
order. Of a product of few rows that takes as long as the product. Weights that nothing else reads
lie in panels in the file.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from torch_tenon.exporting.held import Graph, Held
from torch_tenon.exporting.laid_out import LaidOut, enter, in_panels
from torch_tenon.exporting.weights import key_of
from torch_tenon.ir.program import PANEL

aten = torch.ops.aten
_PRODUCTS = (aten.mm.default, aten.matmul.default)
# Columns of zeros that panels may have beside each so many of the weights.
FILLED_OF = 16


@functools.cache
def _op() -> Any:
    """The op that such products become, which has a lowering and no kernel."""
    library = torch.library.Library("tenon", "FRAGMENT")
    library.define("multiply_by_panels(Tensor x, Tensor panels, Tensor? added) -> Tensor")
    _op.library = library  # type: ignore[attr-defined]
    return torch.ops.tenon.multiply_by_panels.default


class _Product(NamedTuple):
    """A node that multiplies by a weight: `turned` if by its transpose."""

    node: Node
    x: Node
    weight: Node
    turned: bool
    added: Node | None


def lay_out_products(graphs: Sequence[Graph], laid_out: LaidOut) -> None:
    """Replaces products with float32 weights in the methods of a program.

    A weight that is read in another way too, in whichever method, stays: it would be there twice.
    """
    found = [_Products(g) for g in graphs]
    held = [(key_of(h.tensor), products.way(h)) for products in found for h in products.held]
    ways: dict[Any, set[bool | None]] = {}
    for key, way in held:
        ways.setdefault(key, set()).add(way)
    for products in found:
        for h in products.held:
            if ways[key_of(h.tensor)] in ({True}, {False}):
                products.replace(h, laid_out)


class _Products:
    """The products of a graph, by the weight that is their right operand."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.held = [p for p in graph.placeholders if isinstance(p, Held)]
        self.of_weight: dict[Node, list[_Product]] = {}
        for node in graph.module.graph.nodes:
            p = _product(node)
            if p is not None:
                self.of_weight.setdefault(p.weight, []).append(p)

    def way(self, held: Held) -> bool | None:
        """Whether all that reads a weight multiplies by its transpose (True), or by the weight
        itself (False); None where it is read in several ways, or lies better as it is."""
        w, products = held.tensor, self.of_weight.get(held.node, [])
        readers = {p.node for p in products}
        users = [v for u in held.node.users for v in (u.users if _is_turn(u) else [u])]
        ways = {p.turned for p in products}
        if len(ways) != 1 or not readers.issuperset(users):
            return None
        if held.is_written or not held.has_value or w.dtype is not torch.float32:
            return None
        (turned,) = ways
        columns = len(w) if turned else w.shape[1]
        return turned if w.numel() and -columns % PANEL <= columns // FILLED_OF else None

    def replace(self, held: Held, laid_out: LaidOut) -> None:
        """Lays out a weight, and lets its products read that."""
        products = self.of_weight[held.node]
        turned = products[0].turned

        def make() -> Tensor:
            w = held.tensor.detach().cpu()
            return in_panels(w.t() if turned else w)

        graph = self.graph.module.graph
        weights = laid_out.made((key_of(held.tensor), turned), make)
        right = enter(self.graph, held, "panels", weights)
        for p in products:
            with graph.inserting_before(p.node):
                new = graph.call_function(_op(), (p.x, right, p.added))
            new.meta = dict(p.node.meta)
            p.node.replace_all_uses_with(new)
            graph.erase_node(p.node)
        for turn in list(held.node.users):
            graph.erase_node(turn)
        graph.erase_node(held.node)
        self.graph.placeholders.remove(held)


def _product(node: Node) -> _Product | None:
    """What the node multiplies; None where it is another op, or scales."""
    given: Sequence[Any] = node.args
    if node.kwargs:
        return None
    if node.target is aten.linear.default:
        x, weight, added = given[0], given[1], given[2] if len(given) > 2 else None
        found = _Product(node, x, weight, True, added)
    elif node.target in _PRODUCTS:
        found = _of_right(node, given[0], given[1], None)
    elif node.target is aten.addmm.default:
        found = _of_right(node, given[1], given[2], given[0])
    else:
        return None
    x, weight = found.x.meta["val"], found.weight.meta["val"]
    added = None if found.added is None else found.added.meta["val"]
    operands = [x, weight, node.meta["val"], *([] if added is None else [added])]
    if any(v.dtype is not torch.float32 for v in operands) or weight.dim() != 2 or x.dim() == 0:
        return None
    is_row = added is None or added.dim() <= 1 or node.target is aten.addmm.default
    operands = [found.x, *([] if found.added is None else [found.added])]
    seen = [n.args[0] if _is_turn(n) else n for n in operands]
    return found if is_row and found.weight not in seen else None


def _of_right(node: Node, x: Node, right: Node, added: Node | None) -> _Product:
    if _is_turn(right):
        return _Product(node, x, cast(Node, right.args[0]), True, added)
    return _Product(node, x, right, False, added)


def _is_turn(node: Node) -> bool:
    """Whether it is the transpose of a matrix: a view with sizes and steps exchanged."""
    if not isinstance(node.target, OpOverload) or not node.target.is_view:
        return False
    x, y = cast(Node, node.args[0]).meta["val"], node.meta["val"]
    if not isinstance(y, Tensor) or x.dim() != 2 or x.dtype is not y.dtype:
        return False
    steps = zip((*y.shape, *y.stride()), (*x.shape[::-1], *x.stride()[::-1]), strict=False)
    # Sizes that happen to agree in the example need not: to ask would fix them.
    exchanged = y.dim() == 2 and all(statically_known_true(a == b) for a, b in steps)
    return exchanged and statically_known_true(y.storage_offset() == x.storage_offset())
