"""The ops that the cpu target's library runs in plans, beside products of matrices.

These are PyTorch's own kernels for the host: oneDNN, LAPACK, its sort, pocketfft or MKL. They are
linked as they are, complex operands included; nothing is gained by loops of our own.
"""

from __future__ import annotations

_FAMILIES = {
    "convolution": "convolution _convolution convolution_backward",
    "linear algebra": "_cholesky_solve_helper _linalg_det _linalg_eigh _linalg_slogdet "
    "_linalg_solve_ex _linalg_svd cholesky cholesky_inverse cholesky_solve geqrf "
    "linalg_cholesky_ex linalg_eig _linalg_eigvals linalg_eigvals linalg_householder_product "
    "linalg_inv_ex linalg_ldl_factor_ex linalg_ldl_solve linalg_lstsq linalg_lu "
    "linalg_lu_factor_ex linalg_lu_solve linalg_matrix_exp linalg_pinv linalg_qr "
    "linalg_solve_triangular lu_unpack ormqr triangular_solve",
    "Fourier transforms": "_fft_c2c _fft_c2r _fft_r2c",
    "sorting": "kthvalue median mode nanmedian sort topk",
}
# `csrc/attention.cpp` has the kernel.
_ATTENTION = ("tenon::attention", "tenon::attention_backward")

LIBRARY = frozenset(_ATTENTION) | {
    f"aten::{name}" for names in _FAMILIES.values() for name in names.split()
}
