// The call by which plans have the host run loops that a target has no code for
// (torch_tenon/compiler/host_kernels.py). The op is the core's: a plan that another process wrote
// names it before anything of the compiler is loaded.

#include <ATen/core/Tensor.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

#include "device/interrupts.h"

namespace tenon {
namespace {

std::vector<at::Tensor> host_kernel(
    c10::string_view source,
    at::TensorList memory,
    at::IntArrayRef numbers,
    at::IntArrayRef written) {
  // It is the plan's Python, not the program's: an interrupt in it would be the results' error.
  const DeferredInterrupts until_it_has_run;
  const pybind11::gil_scoped_acquire gil;
  const auto run = pybind11::module_::import("torch_tenon.compiler.host_kernels").attr("run");
  return run(std::string(source), memory.vec(), numbers.vec(), written.vec())
      .cast<std::vector<at::Tensor>>();
}

TORCH_LIBRARY_FRAGMENT(tenon, m) {
  m.def("host_kernel(str source, Tensor[] memory, int[] numbers, int[] written) -> Tensor[]");
}

TORCH_LIBRARY_IMPL(tenon, CPU, m) {
  m.impl("host_kernel", &host_kernel);
}

}  // namespace
}  // namespace tenon
