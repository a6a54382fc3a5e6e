"""Where the releases of PyTorch that torch-tenon builds for differ, and nowhere else."""

import torch

# Ops of PyTorch 2.13 that 2.15 does not have.
_REMOVED = frozenset({"aten::cholesky"})


def is_removed(op: str) -> bool:
    """Whether the installed PyTorch no longer has this op (`"aten::cholesky"`), which others have.

    False for a name that no release has: asking PyTorch for it then raises AttributeError.
    """
    namespace, _, base = op.partition("::")
    return op in _REMOVED and not hasattr(getattr(torch.ops, namespace), base)
