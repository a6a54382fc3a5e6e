"""What a backend decides alike wherever kernels are in a language of C's family."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch_tenon.compiler.backend import Backend

if TYPE_CHECKING:
    import torch

    from torch_tenon.compiler.schedule import Member

MANY_ELEMENTS = 32768  # worth a second kernel
PIECE = 8192  # elements of a partial result


class CFamilyBackend(Backend):
    """Products of float matrices, with what was fused over each piece of them."""

    @functools.cached_property
    def product_dtypes(self) -> frozenset[torch.dtype]:  # type: ignore[override]
        """Those that each target's own product multiplies."""
        import torch

        return frozenset((torch.float32, torch.bfloat16, torch.float16))

    def fusion_problem(self, members: Sequence[Member]) -> str | None:
        """What cannot be the epilogue of a product."""
        from torch_tenon.targets.c_family.fusion import epilogue_problem

        return epilogue_problem(members)
