"""What a run that fails has lost: contents of memory that follow from a step which failed.

Steps run also after one that failed, on whatever that has left.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch_tenon.compiler.schedule import Group
from torch_tenon.ir.program import Extern, Loop, Node
from torch_tenon.ir.values import Storage


def follows_from_failure(groups: Iterable[Group]) -> set[Storage]:
    """The memory that some groups, in the order in which they run, write after a step that may
    fail, and with what that has made."""
    found: set[Storage] = set()
    for group in groups:
        nodes = list(group.nodes())
        reads = {b.storage for n in nodes for b in n.reads}
        if any(map(_may_fail, nodes)) or not found.isdisjoint(reads):
            found.update(b.storage for n in nodes for b in n.outputs)
    return found


def _may_fail(node: Node) -> bool:
    """Whether a node looks at what it reads: kernels of the target's library do not."""
    if isinstance(node, Extern):
        return node.route != "library"
    return isinstance(node, Loop) and any(s.op == "check" for s in node.trace)
