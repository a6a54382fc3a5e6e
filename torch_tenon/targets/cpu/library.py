"""The ops that the cpu target's library runs in plans, beside products of matrices.

These are PyTorch's own kernels for the host: oneDNN, LAPACK, its sort, pocketfft or MKL. They are
linked as they are, complex operands included; nothing is gained by loops of our own.
"""

from __future__ import annotations

from torch_tenon.ops.manifest import load

# Attention has a kernel in `csrc/attention.cpp`.
_KINDS = ("convolution", "linear algebra", "Fourier transforms", "sorting", "attention")

LIBRARY = frozenset(op for op, entry in load().items() if entry.library in _KINDS)
