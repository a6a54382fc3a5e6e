#include "device/threads.h"

#include <omp.h>

namespace tenon {
namespace {

thread_local int t_outside = 0;  // 0: none lives

}  // namespace

Threads::Threads(int count) {
  if (count == 0)
    return;
  before_ = omp_get_max_threads();
  outermost_ = t_outside == 0;
  if (outermost_)
    t_outside = before_;
  omp_set_num_threads(count);
}

int Threads::outside() {
  return t_outside > 0 ? t_outside : omp_get_max_threads();
}

Threads::~Threads() {
  if (before_ > 0)
    omp_set_num_threads(before_);
  if (outermost_)
    t_outside = 0;
}

}  // namespace tenon
