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
    writes: Sequence[int] | None = None,
) -> None:
    """Enqueues a kernel of the target's over tensors of one device, and does not wait for it.

    What was recorded with the tensors runs before. The target's queue gets `kernel` as it is, where
    each tensor begins (its first element, whatever its strides; None stays None), and the numbers,
    64 bits each; on a target with `host_memory` it is the address of a function as
    `Backend.compile` gives.

    `writes` says which tensors the kernel writes, by their places in `tensors`; the others are only
    read. Without it the arguments of the op that a library's function computes are only read, and
    any other tensor may be written. What is only read may be read by the host meanwhile, and keeps
    its values where the launch fails. An error that a tensor is known to have is raised.

    A kernel with a grid has `grid` runs along each axis, in groups of `group`, which share
    `scratch` bytes of fast memory. A kernel of `Backend.compile` may be let go of at once: what it
    lies in stays until it has run. Raises RuntimeError for tensors of other devices, for a group
    of other axes than the grid's, for sizes that are none, and for `writes` of no tensor.
    """
    owner = getattr(kernel, "owner", None)
    _C.launch(kernel, tensors, numbers, grid, group, scratch, writes, owner)
