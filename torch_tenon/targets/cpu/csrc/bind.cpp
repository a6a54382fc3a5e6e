// What Python sees of the cpu target's kernels: torch_tenon/targets/cpu/autotune.py chooses among
// the ways to multiply.

#include "python/registration.h"

#include <pybind11/functional.h>

#include "device/interrupts.h"
#include "matmul.h"

namespace py = pybind11;

namespace tenon {
namespace {

// Python's choice: `choose(key, trial)` gives the number of a way, where `trial(way, repeats)`
// gives the seconds of one run.
MatmulTuner bind_tuner(const py::object& object) {
  using Trial = std::function<double(int64_t, int64_t)>;
  using Choose = std::function<int64_t(const MatmulKey&, Trial)>;
  // It lives for good, as kernels may.
  auto* choose = new Choose(object.cast<Choose>());
  return [choose](const MatmulKey& key, const MatmulTrial& trial) {
    // A kernel asks, in the middle of a window: an interrupt would be the window's error.
    const DeferredInterrupts until_it_has_chosen;
    return static_cast<MatmulRoute>((*choose)(key, [&](int64_t route, int64_t repeats) {
      return trial(static_cast<MatmulRoute>(route), repeats);
    }));
  };
}

const RegisterBindings kernel_bindings([](py::module_& m) {
  m.def("set_matmul_tuner", [](py::object choose) {
    set_matmul_tuner(choose.is_none() ? MatmulTuner() : bind_tuner(choose));
  });
  m.def("set_threads_of_choices", &set_threads_of_choices);
  m.def("set_matmul_driver", [](uintptr_t address, std::shared_ptr<KernelOwner> owner) {
    set_matmul_driver(reinterpret_cast<void (*)(const tenon_matmul_t*)>(address), std::move(owner));
  });
  m.def("matmul_choices", [] {
    const auto c = matmul_choices();
    return std::make_tuple(c.kept, kMostMatmulChoices, c.found, c.asked, c.evicted);
  });
});

}  // namespace
}  // namespace tenon
