"""Equal kernels over different memory as one tree."""

from __future__ import annotations

from torch_tenon.compiler.loops.tree import For, Statement, Tree, map_loops
from torch_tenon.ir.index import Symbol


def batched(tree: Tree, count: int) -> Tree:
    """`count` runs of a tree, which do not need each other, as one: the grid is whole runs, since
    starting it once for each small tensor costs more than the work."""

    def change(loop: For) -> list[Statement]:
        return [loop.like(kind="parallel") if loop.kind == "grid" else loop]

    sets = Symbol("set", count)
    body = map_loops(tree.body, change)
    loop = For(sets, "grid", sets, (0,), (count,), body)
    return Tree([loop], tree.numbers, tree.shares, sets)
