#include "runtime/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "runtime/error.h"

namespace tenon {

MappedFile::MappedFile(const std::string& path) : path_(path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0)
    fail(ErrorKind::error, "{} cannot be opened: {}", path, std::strerror(errno));
  struct stat facts{};
  if (fstat(file, &facts) != 0 || !S_ISREG(facts.st_mode)) {
    close(file);
    fail(ErrorKind::error, "{} is no file", path);
  }
  const auto nbytes = static_cast<size_t>(facts.st_size);
  void* const mapped =
      nbytes > 0 ? mmap(nullptr, nbytes, PROT_READ, MAP_PRIVATE, file, 0) : nullptr;
  const int reason = errno;
  close(file);
  if (mapped == MAP_FAILED)
    fail(ErrorKind::error, "{} cannot be mapped to memory: {}", path, std::strerror(reason));
  mapped_ = mapped;
  bytes_ = {static_cast<const char*>(mapped), nbytes};
}

MappedFile::~MappedFile() {
  if (mapped_ != nullptr)
    munmap(mapped_, bytes_.size());
}

}  // namespace tenon
