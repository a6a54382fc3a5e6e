// How many threads loops are shared between.
#pragma once

namespace tenon {

// The number for the loops that this thread starts, while this lives; 0: as it is.
class Threads {
 public:
  explicit Threads(int count);
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;
  ~Threads();

 private:
  int before_ = 0;
};

}  // namespace tenon
