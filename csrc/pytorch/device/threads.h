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

  // The number outside of all that live on this thread: what is chosen for that number stays chosen
  // however many a run has.
  static int outside();

 private:
  int before_ = 0, for_mkl_before_ = 0;
  bool outermost_ = false;
};

}  // namespace tenon
