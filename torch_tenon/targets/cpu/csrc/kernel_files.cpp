// Kernels of this process in shared objects that another one compiled, and the choices among the
// ways to multiply that came with them.

#include <dlfcn.h>
#include <sys/stat.h>

#include <mutex>
#include <unordered_map>

#include "device/fork.h"
#include "matmul.h"
#include "python/registration.h"
#include "runtime/archive.h"
#include "windows/plan_file.h"

namespace tenon {

template <class Archive>
void fields(Archive& archive, MatmulChoice& x) {
  for (auto& word : x.key)
    archive(word);
  archive(x.route);
}

namespace {

using Driver = void (*)(const tenon_matmul_t*);

// A shared object that is open. There is one of each path, while somebody has it.
class SharedObject final : public KernelOwner {
 public:
  // What lies at that path, and is known to have that checksum; a private one is not found again.
  // nullptr: it does not load here.
  static std::shared_ptr<SharedObject> open(
      const std::string& path, uint64_t file_checksum, bool is_private);
  // The one that is open, if its checksum is this.
  static std::shared_ptr<SharedObject> find_open(const std::string& path, uint64_t file_checksum);

  ~SharedObject() override;
  SharedObject(const SharedObject&) = delete;
  SharedObject& operator=(const SharedObject&) = delete;

  uintptr_t address(const std::string& symbol) const {
    return reinterpret_cast<uintptr_t>(dlsym(handle_, symbol.c_str()));
  }
  uint64_t file_checksum() const {
    return checksum_;
  }
  size_t nbytes() const override {
    return nbytes_;
  }

 private:
  SharedObject(std::string path, uint64_t file_checksum, void* handle, size_t nbytes)
      : path_(std::move(path)), checksum_(file_checksum), handle_(handle), nbytes_(nbytes) {}

  const std::string path_;
  const uint64_t checksum_;
  void* const handle_;
  const size_t nbytes_;
};

struct Open {
  // Held while the loader works, whose own lock a fork does not take.
  MutexAtFork<ForkOrder::kernel_files> mutex;
  std::unordered_map<std::string, std::weak_ptr<SharedObject>> by_path;
};

Open& all_open() {
  return OnlyOne<Open>::get();
}

// The threads of a runtime of OpenMP outlive the loops that started them, and have to find its code
// when the last object goes that is linked with it.
void keep_openmp() {
  for (const auto* runtime : {"libgomp.so.1", "libomp.so.5", "libomp.so", "libiomp5.so"})
    dlopen(runtime, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
}

std::shared_ptr<SharedObject> SharedObject::open(
    const std::string& path, uint64_t file_checksum, bool is_private) {
  auto& open = all_open();
  const std::lock_guard<std::mutex> lock(open.mutex);
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr)
    return nullptr;
  keep_openmp();
  // Kernels around a product of matrices learn where the target's is.
  if (auto* entry = static_cast<void**>(dlsym(handle, "tenon_matmul")))
    *entry = reinterpret_cast<void*>(&multiply);
  struct stat file{};
  const bool known = stat(path.c_str(), &file) == 0;
  const std::shared_ptr<SharedObject> made(
      new SharedObject(path, file_checksum, handle, known ? file.st_size : 0));
  if (!is_private)
    open.by_path[path] = made;
  return made;
}

std::shared_ptr<SharedObject> SharedObject::find_open(
    const std::string& path, uint64_t file_checksum) {
  std::shared_ptr<SharedObject> object;  // ends after the lock, which its end takes
  auto& open = all_open();
  const std::lock_guard<std::mutex> lock(open.mutex);
  const auto found = open.by_path.find(path);
  if (found != open.by_path.end())
    object = found->second.lock();
  return object && object->checksum_ == file_checksum ? object : nullptr;
}

SharedObject::~SharedObject() {
  auto& open = all_open();
  const std::lock_guard<std::mutex> lock(open.mutex);
  const auto found = open.by_path.find(path_);
  if (found != open.by_path.end() && found->second.expired())
    open.by_path.erase(found);
  // No thread is in its code: whoever runs a plan holds it, and other threads of a loop have left
  // the loop's function when the one that started it goes on.
  dlclose(handle_);
}

LoadedKernel load_kernel(
    const std::string& path, const std::string& symbol, uint64_t file_checksum) {
  auto object = SharedObject::find_open(path, file_checksum);
  if (!object) {
    const auto bytes = read_whole(path);
    if (!bytes || checksum(*bytes) != file_checksum)
      return {};
    object = SharedObject::open(path, file_checksum, /*is_private=*/false);
  }
  if (!object)
    return {};
  const auto address = object->address(symbol);
  return {address, std::move(object)};
}

// Choices that were made for a plan, as bytes, and the number of the driver among its kernels.
struct Choices {
  std::vector<MatmulChoice> all;
  int64_t driver = -1;
};

bool adopt(std::string_view extras, c10::ArrayRef<LoadedKernel> kernels) {
  if (extras.empty())
    return true;
  Choices choices;
  Reader archive(extras);
  archive(choices.all, choices.driver);
  if (choices.driver >= 0 && !has_matmul_driver()) {
    const auto& driver = kernels.at(choices.driver);
    set_matmul_driver(reinterpret_cast<Driver>(driver.address), driver.owner);
  }
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

const RegisterBindings kernel_file_bindings([](pybind11::module_& m) {
  m.def(
      "use_kernel_files",
      [] { set_kernel_files({load_kernel, adopt}); },
      "Kernels of plans that were kept are the host's, in shared objects.");
  namespace py = pybind11;
  py::class_<SharedObject, KernelOwner, std::shared_ptr<SharedObject>>(
      m, "SharedObject", "A shared object that is open, while this or a plan with its kernels is.")
      .def(
          py::init([](const std::string& path, uint64_t file_checksum, bool is_private) {
            auto found = is_private ? nullptr : SharedObject::find_open(path, file_checksum);
            if (!found)
              found = SharedObject::open(path, file_checksum, is_private);
            if (!found) {
              PyErr_SetString(PyExc_OSError, c10::str(path, " does not load").c_str());
              throw py::error_already_set();
            }
            return found;
          }),
          py::arg("path"),
          py::arg("checksum"),
          py::arg("private") = false)
      .def("address", &SharedObject::address, "Of a function; 0: it has none of that name.")
      .def_property_readonly("checksum", &SharedObject::file_checksum, "That it was opened with.");
  m.def(
      "noted_matmul_choices",
      [](const pybind11::function& run, int64_t driver) {
        return pybind11::bytes(choices_of(run, driver));
      },
      "What a function makes this thread choose for products, for whoever keeps the plan.");
});

}  // namespace

}  // namespace tenon
