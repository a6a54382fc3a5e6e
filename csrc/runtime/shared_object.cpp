#include "runtime/shared_object.h"

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace tenon {
namespace {

// An open file that is closed at the end, and removed if it has that path.
struct OpenFile {
  int number = -1;
  const char* removed = nullptr;
  ~OpenFile() {
    if (removed != nullptr)
      unlink(removed);
    if (number >= 0)
      close(number);
  }
};

void write_all(int file, std::string_view bytes) {
  while (!bytes.empty()) {
    const auto written = write(file, bytes.data(), bytes.size());
    if (written < 0 && errno != EINTR)
      fail(ErrorKind::error, "the code of kernels cannot be written: {}", std::strerror(errno));
    bytes.remove_prefix(written > 0 ? static_cast<size_t>(written) : 0);
  }
}

}  // namespace

SharedObject::SharedObject(const std::string& path)
    : handle_(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
  if (handle_ == nullptr)
    fail(ErrorKind::error, "a file of kernels does not open: {}", dlerror());
}

std::shared_ptr<SharedObject> SharedObject::of_bytes(std::string_view bytes) {
  OpenFile file{memfd_create("kernels", MFD_CLOEXEC)};
  if (file.number >= 0) {
    write_all(file.number, bytes);
    auto object = shared<SharedObject>(text_of("/proc/self/fd/{}", file.number));
    // The loader knows an object by its path: another one is not to have the same number.
    std::swap(object->file_, file.number);
    return object;
  }
  const char* folder = std::getenv("TMPDIR");
  auto path = text_of("{}/kernels-XXXXXX", folder != nullptr ? folder : "/tmp");
  file.number = mkstemp(path.data());
  if (file.number < 0)
    fail(ErrorKind::error, "no file for kernels at {}: {}", path, std::strerror(errno));
  file.removed = path.c_str();
  write_all(file.number, bytes);
  return shared<SharedObject>(path);
}

SharedObject::~SharedObject() {
  dlclose(handle_);
  if (file_ >= 0)
    close(file_);
}

void* SharedObject::find(const std::string& name) const {
  return dlsym(handle_, name.c_str());
}

void* SharedObject::symbol(const std::string& name) const {
  void* found = find(name);
  if (found == nullptr)
    fail(ErrorKind::damaged, "a file of kernels has no {}", name);
  return found;
}

}  // namespace tenon
