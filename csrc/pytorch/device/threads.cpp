#include "device/threads.h"

#include <omp.h>

// MKL's own number for the calling thread, which is stronger than OpenMP's; returns the one before,
// 0 where it has none. PyTorch sets it with `torch.set_num_threads`. Not there without MKL.
extern "C" __attribute__((weak)) int MKL_Set_Num_Threads_Local(int count);

namespace tenon {
namespace {

thread_local int t_outside = 0;  // 0: none lives

int set_for_mkl(int count) {
  return MKL_Set_Num_Threads_Local == nullptr ? 0 : MKL_Set_Num_Threads_Local(count);
}

}  // namespace

Threads::Threads(int count) {
  if (count == 0)
    return;
  before_ = omp_get_max_threads();
  outermost_ = t_outside == 0;
  if (outermost_)
    t_outside = before_;
  omp_set_num_threads(count);
  for_mkl_before_ = set_for_mkl(count);
}

int Threads::outside() {
  return t_outside > 0 ? t_outside : omp_get_max_threads();
}

Threads::~Threads() {
  if (before_ > 0) {
    omp_set_num_threads(before_);
    set_for_mkl(for_mkl_before_);
  }
  if (outermost_)
    t_outside = 0;
}

}  // namespace tenon
