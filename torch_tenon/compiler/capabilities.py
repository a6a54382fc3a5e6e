"""What a target's hardware can compute with, as its backend declares it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

# Not PyTorch: backends are there before it is loaded whole.
if TYPE_CHECKING:
    import torch

    from torch_tenon.compiler.loops.tree import Array, Space, Tree
    from torch_tenon.ir.program import Loop


@dataclass(frozen=True)
class Capabilities:
    """What kernels may use. A loop that needs more is the host's, and does not fuse with others.

    storage     dtypes of the elements that kernels load and store
    arithmetic  dtypes that numbers have in registers: 16-bit floats are float32 there
    spaces      bytes of each memory space beside global and private memory: of a group's `shared`
                memory, of a `scratch` memory; none of a space that is not there

    None stands for all of them. Products of matrices have `Backend.product_dtypes`.
    """

    storage: frozenset[torch.dtype] | None = None
    arithmetic: frozenset[torch.dtype] | None = None
    spaces: Mapping[Space, int] = field(default_factory=dict)

    def lacking(self, loop: Loop) -> str | None:
        """What a loop needs and there is not; None where there is all of it."""
        if self.storage is not None:
            memory = [loop.buffer, *loop.reads, *(s.args[0] for s in loop.loads)]
            for buffer in memory:
                if buffer.dtype not in self.storage:
                    return f"no memory of {buffer.dtype}"
        if self.arithmetic is not None and loop.kind != "matmul":
            for scalar in loop.trace:
                if scalar.dtype not in self.arithmetic:
                    return f"no arithmetic of {scalar.dtype}"
        return None

    def parting(self, loops: Sequence[Loop]) -> str | None:
        """Why these loops cannot be one kernel: the host computes one of them."""
        if self.storage is None and self.arithmetic is None:
            return None
        found = [self.lacking(loop) for loop in loops]
        missing = next((text for text in found if text is not None), None)
        return f"the target has {missing}" if missing is not None and None in found else None

    def addresses(self, tree: Tree, space: Space) -> dict[Array, int]:
        """Where the arrays of a kernel lie in a space: their offsets in bytes.

        Raises NotImplementedError where they take more than there is, and so the host runs them.
        """
        from torch_tenon.compiler.loops.addresses import addresses

        offsets, nbytes = addresses(tree, space)
        if nbytes > (most := self.spaces.get(space, 0)):
            raise NotImplementedError(
                f"{nbytes} bytes of {space} memory, of which there are {most}"
            )
        return offsets
