#include "record/surroundings.h"

#include <ATen/Context.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#ifdef __SSE__
#include <xmmintrin.h>
#endif

namespace tenon {
namespace {

constexpr int64_t kDtype = 0xff, kGrad = 1 << 8, kDeterministic = 1 << 9, kWarnOnly = 1 << 10,
                  kInference = 1 << 11, kNoMkldnn = 1 << 12, kFlushes = 3 << 13;

// Whether the thread takes the smallest numbers for zero, where it reads them and where it makes
// them (`torch.set_flush_denormal`): two bits of its own register.
#ifdef __SSE__
constexpr unsigned kMadeZero = 1 << 15, kReadZero = 1 << 6;

int64_t flushes() {
  const auto found = _mm_getcsr();
  return ((found & kMadeZero) != 0 ? 1 << 13 : 0) | ((found & kReadZero) != 0 ? 1 << 14 : 0);
}

void set_flushes(int64_t wanted) {
  _mm_setcsr(
      (_mm_getcsr() & ~(kMadeZero | kReadZero)) | ((wanted & 1 << 13) != 0 ? kMadeZero : 0) |
      ((wanted & 1 << 14) != 0 ? kReadZero : 0));
}
#elif defined(__aarch64__)
constexpr uint64_t kFlushToZero = 1 << 24;

int64_t flushes() {
  uint64_t found = 0;
  asm volatile("mrs %0, fpcr" : "=r"(found));
  return (found & kFlushToZero) != 0 ? kFlushes : 0;
}

void set_flushes(int64_t wanted) {
  uint64_t found = 0;
  asm volatile("mrs %0, fpcr" : "=r"(found));
  found = (found & ~kFlushToZero) | ((wanted & kFlushes) != 0 ? kFlushToZero : 0);
  asm volatile("msr fpcr, %0" : : "r"(found));
}
#else
int64_t flushes() {
  return 0;
}

void set_flushes(int64_t) {}
#endif

c10::DispatchKeySet below_all() {
  return c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset;
}

void put_in_force(int64_t wanted, int64_t now) {
  const auto changed = wanted ^ now;
  if ((changed & kDtype) != 0) {
    const auto dtype = static_cast<c10::ScalarType>(wanted & kDtype);
    c10::set_default_dtype(c10::scalarTypeToTypeMeta(dtype));
  }
  if ((changed & kGrad) != 0)
    c10::GradMode::set_enabled((wanted & kGrad) != 0);
  if ((changed & kInference) != 0)
    c10::AutogradState::get_tls_state().set_inference_mode((wanted & kInference) != 0);
  if ((changed & (kDeterministic | kWarnOnly)) != 0) {
    at::globalContext().setDeterministicAlgorithms(
        (wanted & kDeterministic) != 0, (wanted & kWarnOnly) != 0);
  }
  if ((changed & kNoMkldnn) != 0)
    at::globalContext().setUserEnabledMkldnn((wanted & kNoMkldnn) == 0);
  if ((changed & kFlushes) != 0)
    set_flushes(wanted);
}

}  // namespace

int64_t surroundings() {
  const auto& context = at::globalContext();
  const auto dtype = c10::typeMetaToScalarType(c10::get_default_dtype());
  return static_cast<int64_t>(dtype) | (c10::GradMode::is_enabled() ? kGrad : 0) |
         (context.deterministicAlgorithms() ? kDeterministic : 0) |
         (context.deterministicAlgorithmsWarnOnly() ? kWarnOnly : 0) |
         (c10::InferenceMode::is_enabled() ? kInference : 0) |
         (context.userEnabledMkldnn() ? 0 : kNoMkldnn) | flushes();
}

bool is_deterministic(int64_t surroundings) {
  return (surroundings & kDeterministic) != 0;
}

bool same_settings(int64_t a, int64_t b) {
  return (a & ~(kGrad | kInference)) == (b & ~(kGrad | kInference));
}

BelowAutograd::BelowAutograd() {
  constexpr c10::DispatchKeySet kSelects{c10::DispatchKey::BackendSelect};
  const auto now = c10::impl::tls_local_dispatch_key_set();
  if (!(below_all() - now.excluded_).empty() || !(now.included_ - kSelects - now.excluded_).empty())
    keys_.emplace(kSelects, below_all());
}

NeutralThread::NeutralThread()
    : autograd_(c10::AutogradState::get_tls_state()),
      keys_(c10::DispatchKeySet(c10::DispatchKey::BackendSelect), below_all()) {
  auto& state = c10::AutogradState::get_tls_state();
  state.set_grad_mode(false);
  state.set_inference_mode(false);
  if (at::impl::torch_function_mode_enabled()) {
    functions_ = at::impl::PythonTorchFunctionTLS::get_state();
    at::impl::PythonTorchFunctionTLS::set_state({});
  }
  if (c10::impl::TorchDispatchModeTLS::any_modes_set()) {
    modes_ = c10::impl::TorchDispatchModeTLS::get_state();
    c10::impl::TorchDispatchModeTLS::set_state({});
  }
}

NeutralThread::~NeutralThread() {
  if (modes_)
    c10::impl::TorchDispatchModeTLS::set_state(*modes_);
  if (functions_)
    at::impl::PythonTorchFunctionTLS::set_state(*functions_);
  c10::AutogradState::set_tls_state(autograd_);
}

AsRecorded::AsRecorded(int64_t recorded) : before_(surroundings()), changed_(before_ != recorded) {
  if (changed_)
    put_in_force(recorded, before_);
}

AsRecorded::~AsRecorded() {
  if (changed_)
    put_in_force(before_, surroundings());
}

}  // namespace tenon
