// All that Python sees of the core.

#include <c10/core/Device.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/utils/pybind.h>

#include <cstdlib>

#include "bind_plan.h"
#include "bind_record.h"
#include "compat.h"
#include "device/allocator.h"
#include "device/generator.h"
#include "device/guard.h"
#include "device/target.h"
#include "execute/counters.h"
#include "execute/reference.h"
#include "ops/matmul.h"
#include "record/dispatch.h"

namespace py = pybind11;

namespace tenon {
namespace {

// Python's choice among the ways to multiply: `choose(key, trial)` gives the number of a way, where
// `trial(way, repeats)` gives the seconds of one run. The object lives for good, as kernels may.
MatmulTuner bind_tuner(py::object object) {
  auto* held = new py::object(std::move(object));
  return [held](const MatmulKey& key, const MatmulTrial& trial) {
    py::gil_scoped_acquire gil;
    const auto timed = [&](int64_t route, int64_t repeats) {
      return trial(static_cast<MatmulRoute>(route), repeats);
    };
    return static_cast<MatmulRoute>((*held)(key, py::cpp_function(timed)).cast<int64_t>());
  };
}

// Python's `Target` as the core's. The object lives for good: tensors may die after the
// interpreter.
Target bind_target(py::object object) {
  auto* held = new py::object(std::move(object));
  Target t;
  t.name = held->attr("name").cast<std::string>();
  t.host_memory = held->attr("host_memory").cast<bool>();
  t.device_count = held->attr("devices")().cast<c10::DeviceIndex>();
  t.allocate = [held](size_t nbytes, c10::DeviceIndex device) {
    py::gil_scoped_acquire gil;
    return reinterpret_cast<void*>(
        held->attr("allocate")(nbytes, static_cast<int>(device)).cast<uintptr_t>());
  };
  t.free = [held](void* ptr, c10::DeviceIndex device) {
    py::gil_scoped_acquire gil;
    held->attr("free")(reinterpret_cast<uintptr_t>(ptr), static_cast<int>(device));
  };
  t.copy = [held](
               void* dst, const void* src, size_t nbytes, CopyKind kind, c10::DeviceIndex device) {
    py::gil_scoped_acquire gil;
    held->attr("copy")(
        reinterpret_cast<uintptr_t>(dst),
        reinterpret_cast<uintptr_t>(src),
        nbytes,
        static_cast<int>(kind),
        static_cast<int>(device));
  };
  t.synchronize = [held](c10::DeviceIndex device) {
    py::gil_scoped_acquire gil;
    held->attr("synchronize")(static_cast<int>(device));
  };
  // Most targets compute nothing behind the host's back: asked once, it is not asked again.
  if (held->attr("asynchronous").cast<bool>()) {
    t.idle = [held](c10::DeviceIndex device) {
      py::gil_scoped_acquire gil;
      return held->attr("idle")(static_cast<int>(device)).cast<bool>();
    };
  } else {
    t.idle = [](c10::DeviceIndex) { return true; };
  }
  std::vector<size_t> totals;
  for (int i = 0; i < t.device_count; ++i)
    totals.push_back(held->attr("total_memory")(i).cast<size_t>());
  t.total_memory = [totals](c10::DeviceIndex device) { return totals.at(device); };
  return t;
}

uintptr_t host_allocate(size_t nbytes) {
  constexpr size_t kHugePage = size_t{2} << 20;  // the kernel can then back it with huge pages
  void* ptr = nullptr;
  return posix_memalign(&ptr, kHugePage, nbytes) == 0 ? reinterpret_cast<uintptr_t>(ptr) : 0;
}

void host_free(uintptr_t ptr) {
  std::free(reinterpret_cast<void*>(ptr));
}

void bind_device(py::module_& m) {
  m.def("set_target", [](py::object target) { set_target(bind_target(std::move(target))); });
  m.def("host_allocate", &host_allocate, "Host memory of `nbytes` bytes; 0 where there is none.");
  m.def("host_free", &host_free);
  m.def("device_count", [] { return static_cast<int>(target().device_count); });
  m.def("current_device", [] { return static_cast<int>(current_device()); });
  m.def("set_device", [](int index) { exchange_device(static_cast<c10::DeviceIndex>(index)); });
  m.def("exchange_device", [](int index) {
    if (index < 0)
      return static_cast<int>(current_device());
    return static_cast<int>(exchange_device(static_cast<c10::DeviceIndex>(index)));
  });
  m.def("check_index", [](int index) {
    TORCH_CHECK(index >= -1 && index < 128, "tenon:", index, " is no device index");
    return static_cast<int>(check_index(static_cast<c10::DeviceIndex>(index)));
  });
  m.def("stop_autograd_threads", [] {
    py::gil_scoped_release no_gil;
    torch::autograd::Engine::get_default_engine().stop();
  });
  m.def("synchronize", [](int index) {
    py::gil_scoped_release no_gil;
    synchronize(static_cast<c10::DeviceIndex>(index));
  });
  m.def("default_generator", [](int index) {
    return default_generator(static_cast<c10::DeviceIndex>(index));
  });
  m.def("set_memory_limit", [](int index, std::optional<size_t> nbytes) {
    device_allocator().set_limit(static_cast<c10::DeviceIndex>(index), nbytes);
  });
  m.def("memory_limit", [](int index) {
    return device_allocator().limit(static_cast<c10::DeviceIndex>(index));
  });
}

void bind_execute(py::module_& m) {
  m.def("set_warn_fallback", &set_warn_fallback);
  m.def(
      "set_reference_rule",
      [](const std::string& op,
         std::vector<std::string> host_arguments,
         std::vector<std::string> mutates,
         bool host_results) {
        set_reference_rule(op, {std::move(host_arguments), std::move(mutates), host_results});
      });
  m.def("register_reference_kernels", &register_reference_kernels);
  m.def("reset_counters", &reset_counters);
  m.def(
      "counter_values",
      [] {
        py::list rows;
        for (const auto& v : counter_values())
          rows.append(py::make_tuple(v.route, v.op, v.calls, v.nanoseconds, v.bytes_copied));
        return rows;
      },
      "Tuples (route, op with overload, calls, nanoseconds, bytes copied).");
  m.def("count", [](const std::string& route, const std::string& op, int64_t nanoseconds) {
    auto& c = counter(route, op);
    c.calls.fetch_add(1, std::memory_order_relaxed);
    c.nanoseconds.fetch_add(nanoseconds, std::memory_order_relaxed);
  });
  m.def("set_matmul_tuner", [](py::object choose) {
    set_matmul_tuner(choose.is_none() ? MatmulTuner() : bind_tuner(std::move(choose)));
  });
  m.def("set_matmul_driver", [](uintptr_t address) {
    set_matmul_driver(reinterpret_cast<void (*)(const tenon_matmul_t*)>(address));
  });
  m.def("matmul_entry", [] { return reinterpret_cast<uintptr_t>(&multiply); });
}

}  // namespace

PYBIND11_MODULE(_C, m) {
  m.doc() = "The C++ core of torch_tenon.";
  bind_device(m);
  bind_execute(m);
  bind_plan(m);
  bind_record(m);
}

}  // namespace tenon
