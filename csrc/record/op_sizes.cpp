#include "record/op_sizes.h"

#include <algorithm>
#include <functional>
#include <string_view>

#include "record/image_sizes.h"
#include "record/op_rules.h"

namespace tenon {
namespace {

using c10::IValue;

// Sizes that a slice of another tensor's gradient has to have.
bool allows_slice(c10::ArrayRef<IValue> arguments) {
  const auto& grad = arguments[0].toTensor();
  const auto whole = arguments[1].toIntVector();
  const auto dim = arguments[2].toInt();
  const auto step = arguments[5].toInt();
  const auto rank = static_cast<int64_t>(whole.size());
  if (dim < -rank || dim >= rank || grad.dim() != rank || step <= 0)
    return false;
  const auto d = dim < 0 ? dim + rank : dim;
  const auto bound = [&](int64_t k) {
    return std::clamp(k < 0 ? k + whole[d] : k, int64_t{0}, whole[d]);
  };
  const auto start = bound(arguments[3].toInt());
  const auto end = std::max(bound(arguments[4].toInt()), start);
  for (int64_t k = 0; k < rank; ++k) {
    if (grad.size(k) != (k == d ? (end - start + step - 1) / step : whole[k]))
      return false;
  }
  return true;
}

// An index may show less of the other dimensions, and no more.
bool allows_gather(c10::ArrayRef<IValue> arguments) {
  const auto& self = arguments[0].toTensor();
  const auto& index = arguments[2].toTensor();
  const auto rank = self.dim();
  const auto dim = arguments[1].toInt();
  if (rank == 0 || index.dim() != rank || dim < -rank || dim >= rank)
    return false;
  for (int64_t k = 0; k < rank; ++k) {
    if (k != (dim < 0 ? dim + rank : dim) && index.size(k) > self.size(k))
      return false;
  }
  return true;
}

// As for a gather, and what is scattered, if that is a tensor, is at least as large everywhere.
bool allows_scatter(c10::ArrayRef<IValue> arguments) {
  if (!allows_gather(arguments))
    return false;
  if (!arguments[3].isTensor())
    return true;
  const auto index = arguments[2].toTensor().sizes();
  const auto source = arguments[3].toTensor().sizes();
  return index.size() == source.size() &&
         std::equal(index.begin(), index.end(), source.begin(), std::less_equal<>());
}

// So many of a dimension's elements as it has.
bool allows_choice(c10::ArrayRef<IValue> arguments) {
  const auto& self = arguments[0].toTensor();
  const auto count = arguments[1].toInt(), dim = arguments[2].toInt(), rank = self.dim();
  return dim >= -rank && dim < rank && count >= 0 && count <= self.size(dim);
}

// A batch of matrices: the sizes of factors are rounded, as it were, to the smaller side.
bool allows_matrices(c10::ArrayRef<IValue> arguments) {
  return arguments[0].toTensor().dim() > 2;
}

// With a step other than 1 the length is rounded.
bool allows_range(c10::ArrayRef<IValue> arguments) {
  const bool whole = arguments[0].isInt() && (!arguments[1].isScalar() || arguments[1].isInt());
  const bool has_step = arguments.size() > 3 && arguments[2].isScalar();
  return whole && (!has_step || (arguments[2].isInt() && arguments[2].toInt() == 1));
}

// The length of what is joined.
std::vector<int64_t> total_length(c10::ArrayRef<IValue> arguments) {
  const auto dim = arguments[1].toInt();
  int64_t total = 0;
  for (const auto& tensor : arguments[0].toTensorVector()) {
    const auto d = dim < 0 ? dim + tensor.dim() : dim;
    total += d >= 0 && d < tensor.dim() ? tensor.size(d) : 0;
  }
  return {total};
}

struct Known {
  std::string_view names;         // of ops, in place or not
  std::string_view numbers = "";  // arguments that are sizes
  bool (*allows)(c10::ArrayRef<IValue>) = nullptr;
  bool batch = false;  // may nothing but the batch differ?
  std::vector<int64_t> (*more)(c10::ArrayRef<IValue>) = nullptr;
};

// Ops that PyTorch calls pointwise need no entry, unless a number of theirs may be a count.
constexpr Known kTable[] = {
    // Pointwise as well
    {"div mul", "other"},
    {"elu_backward leaky_relu_backward hardtanh_backward hardswish hardswish_backward "
     "hardsigmoid_backward softplus_backward softshrink_backward hardshrink_backward "
     "log_sigmoid_forward log_sigmoid_backward rrelu_with_noise_backward masked_fill complex polar "
     "_prelu_kernel _prelu_kernel_backward"},
    // Values made anew, copies
    {"_to_copy clone copy_ fill_ zero_ zeros_like ones_like full_like tril triu flip roll "
     "floor_divide draw_ constant_pad_nd"},
    {"zeros ones full new_zeros new_ones new_full", "size"},
    {"eye", "n m"},
    {"repeat", "repeats"},
    {"linspace logspace", "steps"},
    {"arange", "start end", allows_range},
    // Of several tensors, and of places in one
    {"cat", "", nullptr, false, total_length},
    {"stack embedding index index_put _index_put_impl_ index_select index_add index_copy "
     "index_reduce index_fill take put searchsorted bucketize isin"},
    {"_embedding_bag _embedding_bag_forward_only"},
    {"embedding_dense_backward _embedding_bag_backward _embedding_bag_dense_backward",
     "num_weights"},
    {"select_backward", "input_sizes"},
    {"slice_backward", "input_sizes start end", allows_slice},
    {"masked_scatter"},
    {"masked_scatter_backward", "sizes"},
    {"gather", "", allows_gather},
    {"scatter scatter_add scatter_reduce", "", allows_scatter},
    {"topk kthvalue", "", allows_choice},
    // Reductions
    {"sum nansum mean prod amax amin max min aminmax argmax argmin any all var std var_mean "
     "std_mean norm dist linalg_vector_norm logsumexp median nanmedian mode count_nonzero histc "
     "trace"},
    {"cumsum cumprod cummax cummin logcumsumexp sort renorm _softmax _log_softmax _safe_softmax "
     "_softmax_backward_data _log_softmax_backward_data"},
    // Products
    {"mm bmm addmm baddbmm addbmm dot vdot mv addmv addr _trilinear _cdist_forward "
     "_cdist_backward _euclidean_dist _scaled_dot_product_flash_attention_for_cpu "
     "_scaled_dot_product_flash_attention_for_cpu_backward"},
    // Norms, losses, and an optimizer's
    {"native_layer_norm native_layer_norm_backward _fused_rms_norm", "normalized_shape"},
    {"native_batch_norm native_batch_norm_backward _weight_norm_interface "
     "_weight_norm_interface_backward nll_loss_forward nll_loss_backward nll_loss2d_forward "
     "nll_loss2d_backward mse_loss mse_loss_backward smooth_l1_loss smooth_l1_loss_backward "
     "huber_loss huber_loss_backward binary_cross_entropy binary_cross_entropy_backward "
     "binary_cross_entropy_with_logits soft_margin_loss soft_margin_loss_backward "
     "multi_margin_loss multi_margin_loss_backward multilabel_margin_loss_forward "
     "multilabel_margin_loss_backward _fused_adam _fused_adamw _fused_sgd _fused_adagrad"},
    // Steps of recurrent layers
    {"_thnn_fused_lstm_cell _thnn_fused_lstm_cell_backward_impl _thnn_fused_gru_cell "
     "_thnn_fused_gru_cell_backward"},
    // Of images
    {"native_group_norm", "N C HxW", allows_group_norm<0>},
    {"native_group_norm_backward", "N C HxW", allows_group_norm<1>},
    {"_convolution", "", allows_convolution, false, convolved},
    {"convolution_backward", "", allows_convolution_backward},
    {"max_pool2d_with_indices", "", allows_pool<2, true>, false, pooled<2, true>},
    {"max_pool3d_with_indices", "", allows_pool<3, true>, false, pooled<3, true>},
    {"avg_pool2d", "", allows_pool<2, false>, false, pooled<2, false>},
    {"avg_pool3d", "", allows_pool<3, false>, false, pooled<3, false>},
    {"max_pool2d_with_indices_backward", "", allows_pool_backward<2, true>},
    {"max_pool3d_with_indices_backward", "", allows_pool_backward<3, true>},
    {"avg_pool2d_backward", "", allows_pool_backward<2, false>},
    {"avg_pool3d_backward", "", allows_pool_backward<3, false>},
    {"_adaptive_avg_pool2d _adaptive_avg_pool2d_backward _adaptive_avg_pool3d "
     "_adaptive_avg_pool3d_backward adaptive_max_pool2d adaptive_max_pool2d_backward "
     "adaptive_max_pool3d adaptive_max_pool3d_backward grid_sampler_2d grid_sampler_2d_backward "
     "grid_sampler_3d grid_sampler_3d_backward replication_pad1d replication_pad2d "
     "replication_pad3d"},
    {"reflection_pad1d reflection_pad2d reflection_pad3d", "", allows_reflection},
    {"replication_pad1d_backward replication_pad2d_backward replication_pad3d_backward "
     "reflection_pad1d_backward reflection_pad2d_backward reflection_pad3d_backward",
     "",
     allows_padding_backward},
    {"upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d "
     "_upsample_nearest_exact2d _upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d "
     "upsample_trilinear3d upsample_bicubic2d _upsample_bilinear2d_aa _upsample_bicubic2d_aa "
     "upsample_nearest1d_backward upsample_nearest2d_backward upsample_nearest3d_backward "
     "_upsample_nearest_exact1d_backward _upsample_nearest_exact2d_backward "
     "_upsample_nearest_exact3d_backward upsample_linear1d_backward upsample_bilinear2d_backward "
     "upsample_trilinear3d_backward upsample_bicubic2d_backward _upsample_bilinear2d_aa_backward "
     "_upsample_bicubic2d_aa_backward",
     "output_size input_size"},
    {"affine_grid_generator", "size"},
    // Where sizes have to be divided or large enough
    {"glu glu_backward im2col col2im pixel_shuffle pixel_unshuffle _fft_r2c _fft_c2c",
     "",
     nullptr,
     true},
    {"linalg_cholesky_ex linalg_inv_ex linalg_solve_triangular linalg_lu_factor_ex linalg_lu_solve "
     "linalg_qr _linalg_solve_ex _linalg_det _linalg_slogdet _linalg_eigh _linalg_svd "
     "cholesky_solve",
     "",
     allows_matrices,
     true},
    {"_linalg_check_errors"},
};

// Is it one of these words?
bool is_among(std::string_view word, std::string_view words) {
  for (size_t at = words.find(word); at != words.npos; at = words.find(word, at + 1)) {
    const auto end = at + word.size();
    if ((at == 0 || words[at - 1] == ' ') && (end == words.size() || words[end] == ' '))
      return true;
  }
  return false;
}

const Known* find_known(const c10::OperatorHandle& op) {
  static constexpr Known plain{""};
  if (is_foreign(op))  // whatever it is called
    return op.hasTag(at::Tag::pointwise) ? &plain : nullptr;
  std::string_view name = op.schema().name();
  name.remove_prefix(name.find("::") + 2);
  const auto functional = name.substr(0, name.size() - (name.back() == '_' ? 1 : 0));
  for (const auto& known : kTable) {
    if (is_among(name, known.names) || is_among(functional, known.names))
      return &known;
  }
  return op.hasTag(at::Tag::pointwise) || name.rfind("_foreach_", 0) == 0 ? &plain : nullptr;
}

c10::TypeKind kind_of(const c10::Argument& argument) {
  auto type = argument.real_type();
  while (type->kind() == c10::TypeKind::OptionalType || type->kind() == c10::TypeKind::ListType)
    type = type->containedType(0);
  return type->kind();
}

Differing differing(const Known& known, const c10::Argument& argument) {
  const auto& name = argument.name();
  switch (kind_of(argument)) {
    case c10::TypeKind::TensorType:
      if (!known.batch)
        return Differing::kSizes;
      return name == "weight" || name == "bias" ? Differing::kNothing : Differing::kBatch;
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
    case c10::TypeKind::NumberType:
      return is_among(name, known.numbers) ? Differing::kSizes : Differing::kNothing;
    default:
      return Differing::kNothing;
  }
}

}  // namespace

OpSizes sizes_of(const c10::OperatorHandle& op) {
  OpSizes sizes;
  const auto& arguments = op.schema().arguments();
  sizes.arguments.assign(arguments.size(), Differing::kNothing);
  const auto space = op.schema().getNamespace();
  const auto* known = space == "aten" || space == "tenon" ? find_known(op) : nullptr;
  if (known == nullptr)
    return sizes;
  sizes.follow = true;
  sizes.allows = known->allows;
  sizes.more = known->more;
  for (size_t i = 0; i < arguments.size(); ++i)
    sizes.arguments[i] = differing(*known, arguments[i]);
  return sizes;
}

}  // namespace tenon
