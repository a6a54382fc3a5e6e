// A file's bytes in memory that is only read. The system reads a page when it is first used, and
// processes share it.
#pragma once

#include <string>
#include <string_view>

namespace tenon {

class MappedFile {
 public:
  // Raises where there is no such file, or where it cannot be read.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const {
    return path_;
  }
  // They begin a page.
  std::string_view bytes() const {
    return {static_cast<const char*>(start_), nbytes_};
  }

 private:
  const std::string path_;
  void* start_ = nullptr;
  size_t nbytes_ = 0;
};

}  // namespace tenon
