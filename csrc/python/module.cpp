// All that Python sees of the core.

#include "python/registration.h"

#include <c10/core/Device.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/utils/pybind.h>

#include "device/allocator.h"
#include "device/counters.h"
#include "device/fork.h"
#include "device/generator.h"
#include "device/interpreter.h"
#include "device/target.h"
#include "record/execution.h"
#include "record/op_rules.h"
#include "record/op_sizes.h"
#include "record/record.h"

namespace py = pybind11;

namespace tenon {

void bind_plans(py::module_& m);    // plans.cpp
void bind_windows(py::module_& m);  // windows.cpp

namespace {

// Filled while the extension is loaded, before Python asks for the module.
std::vector<void (*)(py::module_&)>& registered() {
  static std::vector<void (*)(py::module_&)> all;
  return all;
}

void bind_device(py::module_& m) {
  m.def("device_count", &device_count);
  m.def("current_device", &current_device);
  m.def("exchange_device", &exchange_device);
  m.def("check_index", [](int index) {
    TORCH_CHECK(index >= -1 && index < 128, "tenon:", index, " is no device index");
    return check_index(static_cast<c10::DeviceIndex>(index));
  });
  m.def("stop_autograd_threads", [] {
    ReleasedInterpreter no_gil;
    torch::autograd::Engine::get_default_engine().stop();
  });
  m.def("take_long_held_locks", &take_long_held_locks, "Until the fork that follows.");
  m.def("synchronize", &synchronize, py::call_guard<ReleasedInterpreter>());
  m.def("default_generator", &default_generator);
  m.def(
      "draw",
      [](c10::DeviceIndex device, uint64_t ops) {
        const auto [seed, offset] = draw({}, device, ops);
        return std::make_pair(static_cast<int64_t>(seed), static_cast<int64_t>(offset));
      },
      "Takes the numbers for so many ops from a device's generator: the seed and the first "
      "offset.");
  m.def("set_memory_limit", [](c10::DeviceIndex index, std::optional<size_t> nbytes) {
    device_allocator().set_limit(index, nbytes);
  });
  m.def("memory_limit", [](c10::DeviceIndex index) { return device_allocator().limit(index); });
}

template <typename T>
T one_of(py::handle field, std::initializer_list<std::pair<std::string_view, T>> values, T none) {
  const auto text = field.cast<std::string_view>();
  if (text.empty())
    return none;
  for (const auto& [name, value] : values) {
    if (name == text)
      return value;
  }
  TORCH_CHECK(false, "the core knows nothing of ", text, " in the table of ops");
}

OpRule rule_of(py::handle entry) {
  OpRule rule;
  rule.host_arguments = entry.attr("host_arguments").cast<std::vector<std::string>>();
  rule.mutates = entry.attr("mutates").cast<std::vector<std::string>>();
  rule.replaces = entry.attr("replaces").cast<bool>();
  rule.run_time_numbers = one_of(
      entry.attr("run_time_numbers"),
      {{"when_they_change", RunTimeNumbers::kWhenTheyChange},
       {"always", RunTimeNumbers::kAlways},
       {"in_graphs", RunTimeNumbers::kNever}},
      RunTimeNumbers::kNever);
  rule.whole = entry.attr("whole").cast<bool>();
  rule.recorded = entry.attr("recorded").cast<bool>();
  rule.sizes = one_of(
      entry.attr("sizes"),
      {{"follow", SizesOfCalls::kFollow}, {"batch", SizesOfCalls::kBatch}},
      SizesOfCalls::kUnknown);
  rule.size_arguments = entry.attr("size_arguments").cast<std::vector<std::string>>();
  rule.size_rule = entry.attr("size_rule").cast<std::string>();
  return rule;
}

void bind_execute(py::module_& m) {
  m.def("set_warn_fallback", &set_warn_fallback);
  m.def(
      "set_op_rule",
      [](const std::vector<std::string>& ops, const std::string& overload, py::handle entry) {
        set_op_rule(ops, overload, rule_of(entry));
      },
      "What an entry of torch_tenon/ops/manifest.py says of ops, or of one overload of theirs.");
  m.def("size_rules", &size_rules, "What an entry may name as its rule of sizes.");
  m.def("register_reference_kernels", &register_reference_kernels);
  m.def(
      "take_by_host", &take_by_host, "Calls of an op on a layout reach the host's kernel for it.");
  m.def("record_op", &record_op, "Records the calls of an op that was declared to this package.");
  m.def("reset_counters", &reset_counters);
  m.def(
      "counter_values",
      &counter_values,
      "Tuples (route, op with overload, calls, nanoseconds, bytes copied).");
  m.def("count", [](const std::string& route, const std::string& op, int64_t nanoseconds) {
    auto& c = counter(route, op);
    c.calls.fetch_add(1, std::memory_order_relaxed);
    c.nanoseconds.fetch_add(nanoseconds, std::memory_order_relaxed);
  });
}

}  // namespace

RegisterBindings::RegisterBindings(void (*bind)(py::module_&), bool imports_torch) {
  auto& all = registered();
  all.insert(imports_torch ? all.end() : all.begin(), bind);
}

PYBIND11_MODULE(_C, m) {
  m.doc() = "The C++ core of torch_tenon.";
  bind_device(m);
  bind_execute(m);
  bind_plans(m);
  bind_windows(m);
  for (auto* bind : registered())
    bind(m);
}

}  // namespace tenon
