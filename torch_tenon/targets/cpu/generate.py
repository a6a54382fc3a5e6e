"""The kernel of a group in C."""

from __future__ import annotations

from torch_tenon.compiler.kernel import Kernel, origin_of
from torch_tenon.compiler.loops.tree import Tree
from torch_tenon.compiler.schedule import Group
from torch_tenon.ir.index import Index
from torch_tenon.ir.values import Buffer
from torch_tenon.targets.c_family.generate import loop_tree
from torch_tenon.targets.c_family.layout import Layout
from torch_tenon.targets.cpu.dialect import CWriter

PARALLEL_WORK = 65536  # work below which starting threads takes as long as they save


def generate(group: Group, kept: set[Buffer]) -> Kernel:
    """The kernel of a group; `kept` are the buffers that somebody outside needs."""
    layout = Layout(group, kept)
    tree = loop_tree(group, kept, layout)
    writer = CWriter(tree, threads(layout.work))
    source = writer.function(origin_of(group.members))
    made = writer.made(source, group, kept, tree.numbers, layout.kind, layout.work)
    made.tree, made.spell = tree, spell
    return made


def spell(tree: Tree, origin: str, work: Index) -> str:
    """A tree in C, whose threads share out `work` scalar operations where that pays."""
    return CWriter(tree, threads(work)).function(origin)


def threads(work: Index) -> Index:
    """0 where threads do not pay, 1 where they do, else what is positive where they do."""
    if isinstance(work, int):
        return int(work >= PARALLEL_WORK)
    return work - (PARALLEL_WORK - 1)
