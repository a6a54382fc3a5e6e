// Autocast: the lists of ops that PyTorch has for its own devices, and those ops of the CPU's
// list that no kernel computes in 16 bits.

#include <ATen/autocast_mode.h>
#include <torch/library.h>

namespace {

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFallthrough());
}

// The macros of autocast_mode.h name these without their namespace.
using namespace at;            // NOLINT
using namespace at::autocast;  // NOLINT

Tensor binary_cross_entropy_banned(
    const Tensor&, const Tensor&, const std::optional<Tensor>&, int64_t) {
  TORCH_CHECK(
      false,
      "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.\n"
      "Many models use a sigmoid layer right before the binary cross entropy layer.\n"
      "In this case, combine the two layers using "
      "torch.nn.functional.binary_cross_entropy_with_logits\n"
      "or torch.nn.BCEWithLogitsLoss.  binary_cross_entropy_with_logits and BCEWithLogits are\n"
      "safe to autocast.");
}

// The library of a GPU has Fourier transforms and factorisations of some 16-bit numbers, and its
// list leaves them alone. PyTorch's CPU kernels, which run these here, have none of them.
#define TENON_FORALL_FP32_OF_THE_CPU(_)   \
  _(_lu_with_info)                        \
  _(cholesky)                             \
  _(cholesky_inverse)                     \
  _(cholesky_solve)                       \
  _(fft_fft)                              \
  _(fft_fft2)                             \
  _(fft_fftn)                             \
  _(fft_hfft)                             \
  _(fft_ifft)                             \
  _(fft_ifft2)                            \
  _(fft_ifftn)                            \
  _(fft_ihfft)                            \
  _(fft_irfft)                            \
  _(fft_irfft2)                           \
  _(fft_irfftn)                           \
  _(fft_rfft)                             \
  _(fft_rfft2)                            \
  _(fft_rfftn)                            \
  _(fractional_max_pool2d)                \
  _(fractional_max_pool3d)                \
  _(geqrf)                                \
  _(inverse)                              \
  _(linalg_cholesky)                      \
  _(linalg_cholesky_ex)                   \
  _(linalg_cond)                          \
  _(linalg_cond, p_str)                   \
  _(linalg_eig)                           \
  _(linalg_eigh)                          \
  _(linalg_eigvals)                       \
  _(linalg_eigvalsh)                      \
  _(linalg_householder_product)           \
  _(linalg_inv)                           \
  _(linalg_inv_ex)                        \
  _(linalg_lstsq)                         \
  _(linalg_matrix_rank)                   \
  _(linalg_matrix_rank, atol_rtol_tensor) \
  _(linalg_matrix_rank, atol_rtol_float)  \
  _(linalg_matrix_rank, tol_tensor)       \
  _(linalg_qr)                            \
  _(linalg_solve)                         \
  _(linalg_svd)                           \
  _(linalg_svdvals)                       \
  _(linalg_tensorinv)                     \
  _(linalg_tensorsolve)                   \
  _(lu_solve)                             \
  _(nanquantile)                          \
  _(nanquantile, scalar)                  \
  _(orgqr)                                \
  _(ormqr)                                \
  _(pinverse)                             \
  _(polar)                                \
  _(qr)                                   \
  _(quantile)                             \
  _(quantile, scalar)                     \
  _(svd)                                  \
  _(triangular_solve)                     \
  _(view_as_complex)

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
#define TENON_LOWER_PRECISION(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
  AT_FORALL_LOWER_PRECISION_FP(TENON_LOWER_PRECISION)
#define TENON_FP32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
  AT_FORALL_FP32(TENON_FP32)
  TENON_FORALL_FP32_OF_THE_CPU(TENON_FP32)
#define TENON_FP32_SET_OPT_DTYPE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
  AT_FORALL_FP32_SET_OPT_DTYPE(TENON_FP32_SET_OPT_DTYPE)
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_PRIVATEUSEONE)
#define TENON_PROMOTE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)
  AT_FORALL_PROMOTE(TENON_PROMOTE)
  KERNEL_PRIVATEUSEONE(stack, promote)
  KERNEL_PRIVATEUSEONE(cat, promote)
  m.impl(TORCH_SELECTIVE_NAME("aten::binary_cross_entropy"), TORCH_FN(binary_cross_entropy_banned));
}

}  // namespace
