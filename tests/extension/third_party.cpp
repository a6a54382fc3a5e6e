// What a third party's extension looks like that knows nothing of torch_tenon: an op with a kernel
// for PrivateUse1, one with a CPU kernel only, one composed of ATen ops, and one with no kernel.

#include <ATen/ATen.h>
#include <torch/library.h>

namespace {

at::Tensor triple_cpu(const at::Tensor& x) {
  return x * 3;
}

at::Tensor triple_device(const at::Tensor& x) {
  TORCH_CHECK(x.device().type() == c10::DeviceType::PrivateUse1, "not on the device");
  return x * 3 + 1000;  // tells the kernel that ran
}

at::Tensor host_only(const at::Tensor& x, at::TensorList more, double factor) {
  auto y = at::empty_like(x);
  const auto dense = x.contiguous();
  const auto* in = dense.const_data_ptr<float>();
  auto* out = y.mutable_data_ptr<float>();
  for (int64_t i = 0; i < x.numel(); ++i)
    out[i] = in[i] * static_cast<float>(factor);
  for (const auto& m : more)
    y += m;
  return y;
}

void host_only_(at::Tensor& x) {
  TORCH_CHECK(x.is_cpu(), "not on the host");
  auto flat = x.contiguous().view(-1);
  TORCH_CHECK_INDEX(flat.numel() > 0, "host_only_: nothing to write to");
  x.fill_(flat[0].item<float>() + 1);
}

at::Tensor composed(const at::Tensor& x) {
  return at::sin(x) + at::cos(x);
}

}  // namespace

TORCH_LIBRARY(third_party, m) {
  m.def("triple(Tensor x) -> Tensor");
  m.def("host_only(Tensor x, Tensor[] more, float factor) -> Tensor");
  m.def("host_only_(Tensor(a!) x) -> ()");
  m.def("composed(Tensor x) -> Tensor", &composed);
  m.def("nowhere(Tensor x) -> Tensor");
}

TORCH_LIBRARY_IMPL(third_party, CPU, m) {
  m.impl("triple", &triple_cpu);
  m.impl("host_only", &host_only);
  m.impl("host_only_", &host_only_);
}

TORCH_LIBRARY_IMPL(third_party, PrivateUse1, m) {
  m.impl("triple", &triple_device);
}
