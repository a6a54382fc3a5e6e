"""The kernel of a group in OpenCL C."""

from __future__ import annotations

from torch_tenon.compiler.capabilities import Capabilities
from torch_tenon.compiler.kernel import Kernel, origin_of
from torch_tenon.compiler.schedule import Group
from torch_tenon.ir.values import Buffer, size_hint
from torch_tenon.targets.c_family.generate import loop_tree
from torch_tenon.targets.c_family.headers import BY_NAME
from torch_tenon.targets.opencl.device import Shape
from torch_tenon.targets.opencl.dialect import OpenCLWriter
from torch_tenon.targets.opencl.layout import AloneLayout, GroupLayout

GROUP_WORK = 16384  # scalar operations that are worth starting a work-group for
GROUPS = 4  # for each compute unit, so that they share out evenly


def generate(group: Group, kept: set[Buffer], shape: Shape, capabilities: Capabilities) -> Kernel:
    """The kernel of a group; `kept` are the buffers that somebody outside needs.

    Raises NotImplementedError for one that the device has no code for.
    """
    layout: AloneLayout | GroupLayout
    if shape.items == 1:
        layout = AloneLayout(group, kept)
        writer = OpenCLWriter(loop_tree(group, kept, layout), shape)
        writer.local = _work_items(size_hint(writer.steps()), size_hint(layout.work), shape)
    else:
        layout = GroupLayout(group, kept, shape, capabilities)
        writer = OpenCLWriter(layout.tree, shape, shared=layout.shared)
        if layout.shared is None:
            writer.local = shape.items if writer.grid() else 1
    source = writer.function(origin_of(group.members))
    if missing := next((name for name in BY_NAME["bessel.h"] if name in source), None):
        raise NotImplementedError(f"{missing} in OpenCL C")
    numbers, first = writer.tree.numbers, [writer.groups()]
    return writer.made(source, group, kept, numbers, layout.kind, layout.work, first)


def _work_items(steps: int, work: int, shape: Shape) -> int:
    """How many steps of the grid are one work-group: a power of two."""
    most = max(1, min(shape.most_items, steps // (GROUPS * shape.units)))
    wanted = max(1, min(most, GROUP_WORK * steps // max(work, 1)))
    return 1 << (wanted.bit_length() - 1)
