// What third parties' extensions look like that know nothing of torch_tenon. `third_party`: an op
// with a kernel for PrivateUse1, one with a CPU kernel only, one composed of ATen ops, and one with
// no kernel. `tenon_aliases`: ops that use a tensor's memory on the calling thread. They read it,
// write it, and make another tensor of it.
//
// A compiler reads all of PyTorch's headers for 25 s: one file, with the headers that it needs.

#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <torch/library.h>

namespace {

at::Tensor triple_cpu(const at::Tensor& x) {
  return x.mul(3);
}

at::Tensor triple_device(const at::Tensor& x) {
  TORCH_CHECK(x.device().type() == c10::DeviceType::PrivateUse1, "not on the device");
  return x.mul(3).add(1000);  // tells the kernel that ran
}

at::Tensor host_only(const at::Tensor& x, at::TensorList more, double factor) {
  auto y = at::empty_like(x);
  const auto dense = x.contiguous();
  const auto* in = dense.const_data_ptr<float>();
  auto* out = y.mutable_data_ptr<float>();
  for (int64_t i = 0; i < x.numel(); ++i)
    out[i] = in[i] * static_cast<float>(factor);
  for (const auto& m : more)
    y.add_(m);
  return y;
}

void host_only_(at::Tensor& x) {
  TORCH_CHECK(x.is_cpu(), "not on the host");
  auto flat = x.contiguous().view(-1);
  TORCH_CHECK_INDEX(flat.numel() > 0, "host_only_: nothing to write to");
  x.fill_(flat[0].item<float>() + 1);
}

at::Tensor composed(const at::Tensor& x) {
  return x.sin().add(x.cos());
}

double total(const at::Tensor& x) {
  const auto* values = x.data_ptr<float>();
  double sum = 0;
  for (int64_t i = 0; i < x.numel(); ++i)
    sum += values[i];
  return sum;
}

void count_up(at::Tensor& x) {
  auto* values = x.data_ptr<float>();
  for (int64_t i = 0; i < x.numel(); ++i)
    values[i] += 1;
}

at::Tensor alias(const at::Tensor& x) {
  return at::from_blob(x.data_ptr<float>(), x.sizes(), [x](void*) {}, x.options());
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

TORCH_LIBRARY(tenon_aliases, m) {
  m.def("total(Tensor x) -> float");
  m.def("count_up(Tensor(a!) x) -> ()");
  m.def("alias(Tensor(a) x) -> Tensor(a)");
}

TORCH_LIBRARY_IMPL(tenon_aliases, PrivateUse1, m) {
  m.impl("total", &total);
  m.impl("count_up", &count_up);
  m.impl("alias", &alias);
}
