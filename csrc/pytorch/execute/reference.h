// Reference execution of a call, at once, by PyTorch's CPU kernel on host views of its arguments:
// the route of every op that has no other (`run_reference`, see record/execution.h).
#pragma once

namespace tenon {

// Warn once per op that falls back.
void set_warn_fallback(bool warn);

}  // namespace tenon
