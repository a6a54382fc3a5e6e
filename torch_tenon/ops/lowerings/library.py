"""Ops that a target has library kernels for, beside products of matrices.

On the cpu target these are PyTorch's own: oneDNN, LAPACK, its sort, pocketfft or MKL. They are
linked as they are, complex operands included; nothing is gained by loops of our own.
"""

from __future__ import annotations

from typing import Any

import torch

from torch_tenon.ops.lowerings.table import LOWERINGS, WHOLE, Build

LIBRARY = {
    "convolution": "convolution _convolution convolution_backward",
    "attention": "_scaled_dot_product_flash_attention_for_cpu "
    "_scaled_dot_product_flash_attention_for_cpu_backward",
    "linear algebra": "_cholesky_solve_helper _linalg_det _linalg_eigh _linalg_slogdet "
    "_linalg_solve_ex _linalg_svd cholesky cholesky_inverse cholesky_solve geqrf "
    "linalg_cholesky_ex linalg_eig _linalg_eigvals linalg_eigvals linalg_householder_product "
    "linalg_inv_ex linalg_ldl_factor_ex linalg_ldl_solve linalg_lstsq linalg_lu "
    "linalg_lu_factor_ex linalg_lu_solve linalg_matrix_exp linalg_pinv linalg_qr "
    "linalg_solve_triangular lu_unpack ormqr triangular_solve",
    "Fourier transforms": "_fft_c2c _fft_c2r _fft_r2c",
    "sorting": "kthvalue median mode nanmedian sort topk",
}


def enter_library(name: str) -> None:
    """Links every functional overload of an op."""
    packet = getattr(torch.ops.aten, name)
    for overload in packet.overloads():
        target = getattr(packet, overload)
        if target._schema.is_mutable or overload.startswith("dimname"):
            continue

        def lower(b: Build, *args: Any, target: Any = target, **keywords: Any) -> Any:
            results = b.call(target, args, keywords, "library")
            return results if len(b.results) > 1 else results[0]

        LOWERINGS[str(target)] = lower
        WHOLE.add(str(target))


for _names in LIBRARY.values():
    for _name in _names.split():
        enter_library(_name)
