#include "python/registration.h"

#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "device/held_object.h"
#include "device/interrupts.h"
#include "distributed/device_backend.h"

namespace py = pybind11;

namespace tenon {
namespace {

// PyTorch has kernels of its collectives for dense tensors of the device, not for sparse ones.
std::tuple<std::vector<at::Tensor>, c10::intrusive_ptr<c10d::Work>> all_reduce_sparse(
    at::TensorList tensors,
    const c10::intrusive_ptr<c10d::ProcessGroup>& group,
    const c10::intrusive_ptr<c10d::ReduceOp>& op,
    const std::optional<at::Tensor>& /*sparse_indices*/,
    bool async,
    int64_t timeout) {
  auto given = tensors.vec();
  c10d::AllreduceOptions options;
  options.reduceOp = *op;
  options.timeout = std::chrono::milliseconds(timeout);
  options.asyncOp = async;
  auto work = group->getBackend(c10::DeviceType::PrivateUse1)->allreduce_sparse(given, options);
  return {std::move(given), std::move(work)};
}

TORCH_LIBRARY_IMPL(c10d, SparsePrivateUse1, m) {
  m.impl("allreduce_", all_reduce_sparse);
}

// By a function of Python's; by nobody for None.
Explain explain_by(const py::object& explain) {
  if (explain.is_none())
    return {};
  return [kept = held(explain)]() -> std::string {
    if (!Py_IsInitialized())
      return "";
    const DeferredInterrupts until_it_has_told;
    const py::gil_scoped_acquire gil;
    try {
      return (*kept)().cast<std::string>();
    } catch (py::error_already_set& error) {
      error.discard_as_unraisable("why a collective failed");
      return "";
    }
  };
}

const RegisterBindings distributed_bindings(
    [](py::module_& m) {
      // PyTorch's own classes are there where it was built with them.
      if (!py::module_::import("torch.distributed").attr("is_available")().cast<bool>())
        return;
      py::class_<DeviceBackend, c10d::Backend, c10::intrusive_ptr<DeviceBackend>>(
          m, "DeviceBackend")
          .def(py::init([](c10::intrusive_ptr<c10d::Backend> host, const py::object& explain) {
            return c10::make_intrusive<DeviceBackend>(std::move(host), explain_by(explain));
          }))
          // PyTorch copies the options to split a group, which those of Gloo do not allow; where
          // there are none it takes those of `getBackendOptions`.
          .def_property_readonly("options", [](const DeviceBackend&) { return py::none(); });
    },
    /*imports_torch=*/true);

}  // namespace
}  // namespace tenon
