// Kernels of this process in shared objects that another one compiled, and the choices among the
// ways to multiply that came with them.

#include <dlfcn.h>

#include <mutex>
#include <unordered_map>

#include "bind.h"
#include "execute/plan_file.h"
#include "matmul.h"
#include "record/archive.h"

namespace tenon {

template <class Archive>
void fields(Archive& archive, MatmulChoice& x) {
  for (auto& word : x.key)
    archive(word);
  archive(x.route);
}

namespace {

using Driver = void (*)(const tenon_matmul_t*);

// Opened once each, for good. Kernels around a product of matrices learn where the target's is.
void* library(const std::string& path) {
  static std::mutex mutex;
  static auto* opened = new std::unordered_map<std::string, void*>();
  const std::lock_guard<std::mutex> lock(mutex);
  auto& found = (*opened)[path];
  if (found == nullptr) {
    found = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (found != nullptr) {
      if (auto* entry = static_cast<void**>(dlsym(found, "tenon_matmul")))
        *entry = reinterpret_cast<void*>(&multiply);
    }
  }
  return found;
}

uintptr_t load_kernel(const std::string& path, const std::string& symbol) {
  auto* const from = library(path);
  return from != nullptr ? reinterpret_cast<uintptr_t>(dlsym(from, symbol.c_str())) : 0;
}

// Choices that were made for a plan, as bytes, and the number of the driver among its kernels.
struct Choices {
  std::vector<MatmulChoice> all;
  int64_t driver = -1;
};

bool adopt(std::string_view extras, c10::ArrayRef<uintptr_t> kernels) {
  if (extras.empty())
    return true;
  Choices choices;
  Reader archive(extras);
  archive(choices.all, choices.driver);
  if (choices.driver >= 0 && !has_matmul_driver())
    set_matmul_driver(reinterpret_cast<Driver>(kernels.at(choices.driver)));
  const auto needs_driver = [](const MatmulChoice& c) {
    return c.route == MatmulRoute::kGenerated;
  };
  if (!has_matmul_driver() && std::any_of(choices.all.begin(), choices.all.end(), needs_driver))
    return false;
  adopt_matmul_choices(choices.all);
  return true;
}

// What `run` chooses on this thread, with what runs the driver: the number of a kernel of the plan.
std::string choices_of(const pybind11::function& run, int64_t driver) {
  Choices choices;
  note_matmul_choices(&choices.all);
  try {
    run();
  } catch (...) {
    note_matmul_choices(nullptr);
    throw;
  }
  note_matmul_choices(nullptr);
  if (choices.all.empty())
    return {};
  const bool generated = std::any_of(choices.all.begin(), choices.all.end(), [](const auto& c) {
    return c.route == MatmulRoute::kGenerated;
  });
  choices.driver = generated ? driver : -1;
  Writer archive;
  archive(choices.all, choices.driver);
  return std::move(archive.bytes);
}

const RegisterBindings registered([](pybind11::module_& m) {
  m.def(
      "use_kernel_files",
      [] { set_kernel_files({load_kernel, adopt}); },
      "Kernels of plans that were kept are the host's, in shared objects.");
  m.def("load_kernel", &load_kernel, "The address of a function in a shared object; 0: none.");
  m.def(
      "noted_matmul_choices",
      [](const pybind11::function& run, int64_t driver) {
        return pybind11::bytes(choices_of(run, driver));
      },
      "What a function makes this thread choose for products, for whoever keeps the plan.");
});

}  // namespace

}  // namespace tenon
