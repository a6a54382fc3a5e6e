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
  // Bytes that lie in memory already, and stay there.
  MappedFile(const std::string& path, std::string_view bytes) : path_(path), bytes_(bytes) {}
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const {
    return path_;
  }
  std::string_view bytes() const {
    return bytes_;
  }

 private:
  const std::string path_;
  std::string_view bytes_;
  void* mapped_ = nullptr;  // null: the memory is somebody else's
};

}  // namespace tenon
