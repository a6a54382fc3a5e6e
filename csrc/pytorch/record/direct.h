// Calls that run at once, for about what the host's own op costs.
//
// Recording pays where a plan runs the window. A program whose windows never come again would
// record each call, look for its window, and run the call after all. So once no window of a thread
// has come again for long, most of its calls run when they are made. Now and then some windows are
// recorded, to see whether they come again by now.
#pragma once

#include <ATen/core/stack.h>
#include <c10/util/ArrayRef.h>

#include <atomic>
#include <cstdint>

namespace tenon {

struct OpInfo;

// How many of the calling thread's next calls are to be run at once.
inline thread_local int64_t direct_calls_left = 0;
inline std::atomic<bool> all_are_direct{false};  // TENON_EXECUTE=direct

inline bool next_is_direct() {
  return direct_calls_left > 0 || all_are_direct.load(std::memory_order_relaxed);
}

// What became of a window of the calling thread.
enum class WindowCame { anew, again };
// `is_small`: to record one of its calls costs as much as to run it.
void note_window(WindowCame came, bool is_small, size_t calls);
// As if the calling thread had had none.
void forget_windows();

// Runs a call at once if that is possible: by the host's kernel, on memory that nothing is pending
// for. Gives a value for each result, nothing for one that is an argument. False: nothing has
// happened. Raises what the kernel raises.
bool run_directly(
    const OpInfo& op, c10::ArrayRef<c10::IValue> arguments, torch::jit::Stack& results);

}  // namespace tenon
