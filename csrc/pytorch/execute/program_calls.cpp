// Exported programs whose plans call PyTorch's ops: what the runtime leaves to who embeds it.

#include "execute/host_call.h"
#include "record/surroundings.h"
#include "record/values.h"
#include "runtime/embed.h"
#include "runtime/host_ops.h"

namespace tenon {
namespace {

void call(const CallStep& step, std::span<void* const> tensors, std::span<void* const> results) {
  const NeutralThread neutral;
  call_over(step, tensors, results, /*device=*/-1);
}

void resolve(CallStep& step) {
  check_data(step.op.starts_with("aten::"), "{} is no op of PyTorch's", name_of_op(step.op));
  check_opens_no_file(op_of(step.op));
  resolve_call(step);
  step.function = &call;
}

int32_t tell_of_pytorch_s(tenon_status* status) {
  const auto tell_of = [&](int32_t code, const c10::Error& error) {
    return tell(status, code, error.what_without_backtrace());
  };
  try {
    throw;
  } catch (const c10::OutOfMemoryError& error) {
    return tell_of(TENON_OUT_OF_MEMORY, error);
  } catch (const c10::IndexError& error) {
    return tell_of(TENON_OUT_OF_RANGE, error);
  } catch (const c10::NotImplementedError& error) {
    return tell_of(TENON_UNSUPPORTED, error);
  } catch (const c10::Error& error) {
    return tell_of(TENON_ERROR, error);
  } catch (...) {
    return tell_handled(status);
  }
}

const bool program_calls_at_load [[maybe_unused]] = [] {
  set_resolve_call(&resolve);
  set_tell(&tell_of_pytorch_s);
  return true;
}();

}  // namespace
}  // namespace tenon
