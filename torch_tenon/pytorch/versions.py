"""Where the releases of PyTorch that torch-tenon builds for differ, and nowhere else."""

import torch

from torch_tenon.ops import manifest


def is_removed(op: str) -> bool:
    """Whether the installed PyTorch no longer has this op (`"aten::cholesky"`), which others have.

    False for a name that no release has: asking PyTorch for it then raises AttributeError.
    """
    namespace, _, base = op.partition("::")
    return bool(manifest.of(op).removed_in) and not hasattr(getattr(torch.ops, namespace), base)


def rounds_limit_of_softshrink() -> bool:
    """Whether the CPU's softshrink of 16-bit numbers takes a limit of 16 bits: from 2.14 on."""
    return torch.__version__ >= "2.14"
