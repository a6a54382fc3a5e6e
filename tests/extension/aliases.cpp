// What a third party's extension does with a tensor's memory, on the calling thread: it reads it,
// writes it, and makes another tensor of it.

#include <ATen/ATen.h>
#include <torch/library.h>

namespace {

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
