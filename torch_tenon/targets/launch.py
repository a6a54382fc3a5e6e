"""Kernels of a target over tensors, for the ops that its library links to them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torch_tenon import _C


def launch(
    kernel: int,
    tensors: Sequence[torch.Tensor | None],
    numbers: Sequence[int] = (),
    *,
    grid: Sequence[int] = (),
    group: Sequence[int] = (),
    scratch: int = 0,
) -> None:
    """Enqueues a kernel of the target's over tensors of one device, and does not wait for it.

    What was recorded with the tensors runs before. The target's queue gets `kernel` as it is, where
    each tensor begins (its first element, whatever its strides; None stays None), and the numbers,
    64 bits each; on a target with `host_memory` it is the address of a function as
    `Backend.compile` gives. The kernel may write any of the tensors.

    A kernel with a grid has `grid` runs along each axis, in groups of `group`, which share
    `scratch` bytes of fast memory. A kernel of `Backend.compile` may be let go of at once: what it
    lies in stays until it has run. Raises RuntimeError for tensors of other devices, for a group
    of other axes than the grid's, and for sizes that are none.
    """
    owner = getattr(kernel, "owner", None)
    _C.launch(kernel, tensors, numbers, grid, group, scratch, owner)
