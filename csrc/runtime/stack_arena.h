// A little memory that lies in an object, and so on the stack where that does.
#pragma once

#include <cstddef>

namespace tenon {

class StackArena {
 public:
  // So many bytes, which start a cache line and last as long as the arena; null where there are not
  // as many left.
  char* take(size_t nbytes) {
    if (nbytes > kBytes - taken_)
      return nullptr;
    char* place = bytes_ + taken_;
    taken_ += (nbytes + kLine - 1) / kLine * kLine;
    return place;
  }

 private:
  static constexpr size_t kLine = 64, kBytes = size_t{16} << 10;
  size_t taken_ = 0;
  alignas(kLine) char bytes_[kBytes];  // not initialised
};

}  // namespace tenon
