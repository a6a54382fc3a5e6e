"""What is fused with a product of matrices: its kernel runs the rest piece by piece."""

from __future__ import annotations

from collections.abc import Sequence

from torch_tenon.compiler.schedule import Member
from torch_tenon.ir.index import product, strides, symbols
from torch_tenon.ir.program import Matmul
from torch_tenon.ir.values import size_hint

FEW = 4096  # elements of a product that lies in a cache, in whatever order it is read


def epilogue_problem(members: Sequence[Member]) -> str | None:
    """Why a product cannot have the other members as its epilogue; None for no product at all."""
    products = [m for m in members if isinstance(m.node, Matmul)]
    if not products:
        return None
    if len(products) > 1:
        return "two products"
    matmul = products[0].node
    assert isinstance(matmul, Matmul)
    if any(m.node.kind not in ("pointwise", "matmul") or not m.full for m in members):
        return "more than pointwise loops after a product"
    # The whole of both operands is read for each piece.
    read = {b.storage for b in matmul.reads}
    if any(m.node.buffer.storage in read for m in members):
        return "it writes what the product reads"
    column = matmul.axes[-1]
    if column is None:
        return None
    columns = symbols(products[0].values[column])
    if len(columns) != 1:
        return "it splits the product's rows"
    (across,) = columns
    # Pieces are gone through by rows, and memory that is dense the other way has a loop of its own.
    if size_hint(product(s.extent for s in matmul.outer)) > FEW:
        for e in (e for m in members for e in (m.index, *(i for _, i in m.loads))):
            if (strides(e) or {}).get(across, 0) not in (0, 1):
                return "it goes through memory across the product's rows"
    return None
