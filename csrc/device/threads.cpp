#include "device/threads.h"

#include <omp.h>

namespace tenon {

Threads::Threads(int count) {
  if (count == 0)
    return;
  before_ = omp_get_max_threads();
  omp_set_num_threads(count);
}

Threads::~Threads() {
  if (before_ > 0)
    omp_set_num_threads(before_);
}

}  // namespace tenon
