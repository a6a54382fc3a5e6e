"""Equal kernels over different memory as one step: an optimizer's, one for each parameter.

Starting a kernel of a small tensor costs as much as the kernel, and nothing can be fused where no
memory is shared. Kernels of one source that do not need each other become one, whose iterations are
the tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch_tenon.compiler.kernel import Kernel
from torch_tenon.compiler.loops.batch import batched
from torch_tenon.compiler.schedule import Group, Schedule
from torch_tenon.ir.values import size_hint

LEAST = 8  # equal kernels from which one step pays: fewer do not share out evenly
MOST_POINTERS = 4096
MOST_BYTES = 1 << 22  # of a kernel that is small


def batches(order: Schedule, kernels: Sequence[Kernel | None]) -> list[tuple[Group, Kernel | None]]:
    """The groups with their kernels (None for a call), equal ones together at the first's place."""
    by_source: dict[tuple[object, ...], list[int]] = {}
    for k, kernel in enumerate(kernels):
        if kernel is None or kernel.tree is None or kernel.grid:
            continue
        if size_hint(kernel.bytes_moved) <= MOST_BYTES:
            by_source.setdefault((kernel.source, kernel.scratch, *kernel.sizes), []).append(k)
    place = {g: k for k, g in enumerate(order.groups)}
    members: dict[int, list[int]] = {}
    moved: set[int] = set()
    for numbers in by_source.values():
        if len(numbers) < LEAST:
            continue
        for run in _runs(order, kernels, place, numbers):
            if len(run) >= LEAST:
                members[run[0]] = run
                moved.update(run[1:])
    found: list[tuple[Group, Kernel | None]] = []
    for k, (group, kernel) in enumerate(zip(order.groups, kernels, strict=True)):
        if k in members:
            kernel = together([x for j in members[k] if (x := kernels[j]) is not None])
        if k not in moved:
            found.append((group, kernel))
    return found


def together(kernels: Sequence[Kernel]) -> Kernel:
    """One kernel for several of the same source that do not need each other."""
    first = kernels[0]
    assert first.tree is not None and first.spell is not None
    tree, work = batched(first.tree, len(kernels)), len(kernels) * first.work
    return replace(
        first,
        source=first.spell(tree, first.origin, work),
        storages=[s for k in kernels for s in k.storages],
        bytes_moved=sum(k.bytes_moved for k in kernels),
        work=work,
        checks=[calls for k in kernels for calls in k.checks],
        tree=tree,
        sets=len(kernels),
        calls=list(dict.fromkeys(call for k in kernels for call in k.calls)),
        operations=sum(k.operations for k in kernels),
    )


def _runs(
    order: Schedule, kernels: Sequence[Kernel | None], place: dict[Group, int], numbers: list[int]
) -> list[list[int]]:
    """`numbers` cut where a kernel needs something that does not run before the first."""
    runs: list[list[int]] = []
    for k in numbers:
        needs = [place[order.home[d]] for n in order.groups[k].nodes() for d in order.needs[n]]
        last = max((p for p in needs if p != k), default=-1)
        kernel = kernels[k]
        assert kernel is not None
        full = runs and len(runs[-1]) * len(kernel.storages) + 64 > MOST_POINTERS
        if runs and last < runs[-1][0] and not full:
            runs[-1].append(k)
        else:
            runs.append([k])
    return runs
