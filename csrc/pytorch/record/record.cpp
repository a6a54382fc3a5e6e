#include "record/record.h"

#include <c10/core/AutogradState.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/ScopeExit.h>

#include <algorithm>

#include "device/interrupts.h"
#include "device/profile.h"
#include "device/python_line.h"
#include "device/storage.h"
#include "device/target.h"
#include "record/call_pattern.h"
#include "record/direct.h"
#include "record/execution.h"
#include "record/graph.h"
#include "record/known_calls.h"
#include "record/recorder.h"

namespace tenon {
namespace {

using c10::IValue;
using torch::jit::Stack;

constexpr int kOften = 2;  // so many values of an op's numbers tell that they change
constexpr size_t kMostSpread = 8192;

// Runs a call at once, for a reason that is counted. It settles the buffers that it touches.
void run_now(const OpInfo& info, Stack* stack, CommitReason reason, std::string_view why) {
  if (C10_UNLIKELY(is_capturing()))
    refuse_in_capture(c10::str(info.name, ", which runs at once (", why, "),"));
  if (is_recording())
    counter(c10::str("at once: ", why), info.name).calls.fetch_add(1, std::memory_order_relaxed);
  const Touching touching(reason);
  if (C10_UNLIKELY(traces_calls()) && is_recording())
    count_at_line("at once", python_line(), c10::str(info.name, ", ", why).c_str(), 0);
  run_reference(info.op, stack);
}

// Runs a call whose key is new, and learns from it.
void run_and_learn(OpInfo& info, Stack* stack, bool open) {
  const auto& schema = info.op.schema();
  const std::vector<IValue> arguments(stack->end() - schema.arguments().size(), stack->end());
  OpKey key;  // over arguments that live until the end
  key.build(arguments, info.numbers, open);
  OpKey without;
  const bool of_pattern = build_pattern_key(without, info, open, arguments);
  std::vector<TensorBefore> before;
  for (const auto* tensor : key.tensors())
    before.emplace_back(*tensor);
  run_now(info, stack, CommitReason::first_call, "its first call with these layouts");
  auto entry =
      learn(info, key, open, before, arguments, torch::jit::last(*stack, schema.returns().size()));
  Entries unused;  // ends after the lock
  std::lock_guard<std::mutex> lock(record_mutex());
  if (info.find(key) == nullptr) {
    if (of_pattern)
      note_pattern(info, *entry, without);
    note_known(*entry);
    info.add(std::move(entry), key.hash(), unused);
  }
}

// For who compares plans with the reference, or captures a graph: what runs at once is not compared
// and not captured. So zeros teach what a call makes. False where it takes other numbers.
bool learn_aside(OpInfo& info, c10::ArrayRef<IValue> arguments, bool open) {
  const OutsideOfCapture teaches;
  // A device's queue may be Python's: an interrupt there would be lost below.
  const DeferredInterrupts until_it_is_learned;
  auto stack = stand_ins_of(arguments);
  try {
    run_and_learn(info, &stack, open);
  } catch (const std::exception&) {  // it raises what it has to raise once it runs
    return false;
  }
  return true;
}

}  // namespace

// A thread may have it otherwise again (`torch.autograd.set_multithreading_enabled`). A thread of
// autograd's own would bring OpenMP threads of its own. When there are more of them than
// processors, libgomp's go to sleep after every loop. Waking them costs more than most loops take.
void keep_backward_here() {
  static thread_local bool done = false;
  if (done || c10::InferenceMode::is_enabled())
    return;  // the end of inference mode would undo it
  done = true;
  c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
}

// What is known of a call with that key; nullptr: nothing yet.
const OpEntry* RecordKernel::find(OpKey& key, c10::ArrayRef<IValue> arguments, Recording& call) {
  if (const auto* entry = info_.find_latest(key))
    return entry;
  {
    std::lock_guard<std::mutex> lock(record_mutex());
    if (const auto* entry = info_.find(key))
      return entry;
  }
  const auto* entry = recall(key, arguments, call.open);
  if (entry != nullptr)
    return entry;
  bool lasts = false;
  call.by_rule = entry_by_rule(info_, key, call.open, arguments, lasts);
  if (!call.by_rule)
    return find_opened(key, arguments, call.open);
  if (!lasts)
    return call.by_rule.get();
  return keep(std::const_pointer_cast<OpEntry>(std::exchange(call.by_rule, nullptr)), key);
}

// The entry that a key has from now on.
const OpEntry* RecordKernel::keep(std::shared_ptr<OpEntry> made, const OpKey& key) {
  Entries unused;  // ends after the lock
  std::lock_guard<std::mutex> lock(record_mutex());
  auto* entry = info_.find(key);
  if (entry != nullptr)
    return entry;
  note_known(*made);
  return info_.add(std::move(made), key.hash(), unused);
}

// The second value of a number opens the op's numbers.
const OpEntry* RecordKernel::find_opened(OpKey& key, c10::ArrayRef<IValue> arguments, bool& open) {
  if (!info_.may_open || open || key.scalars().empty() || has_no_place(info_.numbers, arguments))
    return nullptr;
  OpKey without;
  if (!build_pattern_key(without, info_, true, arguments))
    without.build(arguments, info_.numbers, true);
  OpKey opened;
  opened.build(arguments, info_.numbers, true);
  std::lock_guard<std::mutex> lock(record_mutex());
  if (info_.spread.size() >= kMostSpread)
    info_.spread.clear();
  if (++info_.spread[without.hash()] < kOften)
    return nullptr;
  info_.open_scalars = open = true;
  key = std::move(opened);
  return info_.find(key);
}

// What another process knows of a call with that key; nullptr: nothing either.
const OpEntry* RecordKernel::recall(OpKey& key, c10::ArrayRef<IValue> arguments, bool& open) {
  if (!open && info_.may_open && !key.scalars().empty() &&
      !has_no_place(info_.numbers, arguments) && were_open(info_)) {
    info_.open_scalars = open = true;
    key.build(arguments, info_.numbers, open);
  }
  auto made = tenon::recall(info_, key, open, arguments);
  if (made == nullptr)
    return nullptr;
  OpKey without;
  if (build_pattern_key(without, info_, open, arguments)) {
    std::lock_guard<std::mutex> lock(record_mutex());
    note_pattern(info_, *made, without);
  }
  return keep(std::move(made), key);
}

Recording RecordKernel::record(CallInWork& in_work, c10::ArrayRef<IValue> arguments) {
  Recording call;
  keep_backward_here();
  for (size_t i = 0; info_.counts_writes && i < arguments.size(); ++i) {
    if (!info_.written[i])
      continue;
    for (const IValue& written : arguments[i].toListRef())
      written.toTensor().unsafeGetTensorImpl()->bump_version();
  }
  if (!is_recording() || !info_.recordable) {
    call.why = "its results' layouts are known only once it ran";
    return call;
  }
  OpKey& key = in_work.key();
  call.open =
      info_.open_scalars.load(std::memory_order_relaxed) && !has_no_place(info_.numbers, arguments);
  if (!key.build(arguments, info_.numbers, call.open)) {
    call.instead = as_memory_has_them(arguments, info_.written);
    if (call.instead.empty() || !key.build(call.instead, info_.numbers, call.open)) {
      call.why = "an argument is no plain tensor of one device";
      return call;
    }
    arguments = call.instead;
  }
  for (const auto* tensor : key.tensors()) {
    if (!is_own(storage_of(*tensor))) {
      share_address(storage_of(*tensor));  // whoever made it may look at any time
      call.why = "memory that somebody else allocated";
      return call;
    }
  }
  Profiled profiled(Activity::record, key.device(), info_.subject);
  const auto* entry = find(key, arguments, call);
  if (C10_UNLIKELY(entry == nullptr && (execute_mode() == ExecuteMode::verify || is_capturing()))) {
    profiled.cancel();
    if (learn_aside(info_, arguments, call.open))
      entry = find(key, arguments, call);
  }
  if (entry == nullptr || !entry->recorded) {
    profiled.cancel();
    if (entry != nullptr)
      call.why = entry->reason;
    return call;
  }
  for (const auto k : entry->resized) {
    if (storage_of(*key.tensors()[k]).nbytes() > 0) {
      profiled.cancel();
      call.why = "it gives an empty tensor sizes, and its memory holds something";
      return call;
    }
  }
  call.entry = entry;

  const auto device = key.device();
  auto& recorder = recorder_of(device);
  if (info_.starts_from_memory) {
    std::optional<CommitReason> ends;
    {
      std::lock_guard<std::mutex> lock(record_mutex());
      ends = recorder.ends_before(*entry);
    }
    if (ends)
      submit(recorder, *ends);
    if (ends && profiled)
      profiled.restart();  // the commit is no part of it
  }
  // Where there is no memory for one of the results, none has changed yet.
  std::vector<c10::Storage> grown;
  for (const auto k : entry->resized) {
    const auto nbytes = entry->tensors[k].nbytes;
    TORCH_CHECK(
        nbytes == 0 || storage_of(*key.tensors()[k]).resizable(),
        "Trying to resize storage that is not resizable");
    grown.push_back(nbytes > 0 ? new_storage(nbytes, device) : c10::Storage());
  }
  auto layout = entry->fresh.begin();
  for (const auto& result : entry->results) {
    for (const bool defined : result.defined) {
      call.results.emplace_back();
      if (!defined)
        continue;
      call.results.back() = tensor_over(new_storage(layout->nbytes, device), *layout);
      ++layout;
    }
  }
  for (size_t n = 0; n < grown.size(); ++n) {
    const auto k = entry->resized[n];
    const auto& made = entry->tensors[k];
    key.tensors()[k]->unsafeGetTensorImpl()->set_sizes_and_strides(made.sizes, made.strides);
    if (grown[n])
      replace_memory(storage_of(*key.tensors()[k]), std::move(grown[n]));
  }
  const auto line = traces_calls() ? python_line() : std::string();
  const auto reason = recorder.append(key, call, line, profiled);
  info_.counter->calls.fetch_add(1, std::memory_order_relaxed);
  profiled.finish();
  if (reason)
    submit(recorder, *reason);
  return call;
}

void RecordKernel::run(const Recording& call, Stack* stack) {
  std::copy(call.instead.begin(), call.instead.end(), stack->end() - call.instead.size());
  if (call.why.empty())
    return run_and_learn(info_, stack, call.open);
  const auto arguments = torch::jit::last(*stack, info_.written.size());
  Stack results;
  if (run_settled(info_, arguments, results)) {
    counter(c10::str("at once: ", call.why), info_.name).calls.fetch_add(1);
    return replace(stack, std::move(results));
  }
  run_now(info_, stack, CommitReason::not_recorded, call.why);
}

void RecordKernel::give(Recording& call, c10::ArrayRef<IValue> arguments, Stack* stack) {
  auto next = std::make_move_iterator(call.results.begin());
  for (const auto& plan : call.entry->results) {
    if (plan.argument >= 0) {
      stack->push_back(arguments[plan.argument]);
    } else if (!plan.list) {
      stack->emplace_back(*next++);
    } else {
      c10::List<at::Tensor> list;
      for (size_t n = plan.defined.size(); n > 0; --n)
        list.push_back(*next++);
      stack->emplace_back(std::move(list));
    }
  }
}

// Puts results where the arguments of the call are; those that are arguments are undefined there.
void RecordKernel::replace(Stack* stack, Stack results) {
  const auto arguments = torch::jit::last(*stack, info_.written.size());
  for (size_t i = 0; i < results.size(); ++i) {
    if (info_.returned[i] >= 0)
      results[i] = arguments[info_.returned[i]];
  }
  torch::jit::drop(*stack, arguments.size());
  std::move(results.begin(), results.end(), std::back_inserter(*stack));
}

void RecordKernel::operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  const auto arguments = torch::jit::last(*stack, info_.written.size());
  if (C10_UNLIKELY(next_is_direct()) && info_.recordable) {
    Stack results;
    if (run_directly(info_, arguments, results))
      return replace(stack, std::move(results));
  }
  CallInWork until_its_results_are_there;
  auto call = record(until_its_results_are_there, arguments);
  if (call.entry == nullptr)
    return run(call, stack);
  Stack results;
  give(call, arguments, &results);
  torch::jit::drop(*stack, arguments.size());
  std::move(results.begin(), results.end(), std::back_inserter(*stack));
}

bool record_copy(const at::Tensor& self, const at::Tensor& src, bool non_blocking) {
  if (!is_recording())
    return false;
  static auto* kernel =
      new RecordKernel(c10::Dispatcher::singleton().findSchemaOrThrow("aten::copy_", ""));
  Stack stack{self, src, non_blocking};
  (*kernel)(kernel->info().op, {}, &stack);
  return true;
}

}  // namespace tenon
