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
    fail(ErrorKind::error, path, " cannot be opened: ", std::strerror(errno));
  struct stat facts{};
  if (fstat(file, &facts) != 0 || !S_ISREG(facts.st_mode)) {
    close(file);
    fail(ErrorKind::error, path, " is no file");
  }
  nbytes_ = static_cast<size_t>(facts.st_size);
  if (nbytes_ > 0)
    start_ = mmap(nullptr, nbytes_, PROT_READ, MAP_PRIVATE, file, 0);
  const int reason = errno;
  close(file);
  if (start_ == MAP_FAILED)
    fail(ErrorKind::error, path, " cannot be mapped to memory: ", std::strerror(reason));
}

MappedFile::~MappedFile() {
  if (nbytes_ > 0)
    munmap(start_, nbytes_);
}

}  // namespace tenon
