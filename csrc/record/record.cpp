#include "record/record.h"

#include <c10/core/AutogradState.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/ScopeExit.h>
#include <pybind11/gil_simple.h>

#include <array>
#include <limits>
#include <mutex>
#include <optional>
#include <unordered_set>
#include <utility>

#include "device/allocator.h"
#include "device/recorded.h"
#include "device/storage.h"
#include "device/target.h"
#include "execute/reference.h"
#include "record/plans.h"

namespace tenon {
namespace {

using c10::IValue;
using torch::jit::Stack;

// A window may end before a call that starts from memory anyway, if the last few calls hash lower
// there than at the two places before: so windows fall at the same places of a loop whatever came
// before, equal layers make equal windows, and what changes in one layer changes the windows around
// it.
constexpr size_t kShortest = 16;
// Without such a place a window ends here, and from then on where one ended before.
constexpr size_t kLongest = 512;
constexpr size_t kMostPlaces = 1024;
// Memory that eager execution would have freed by now, in bytes: at most, and where a window may
// end, at most this and this share of what the next call makes.
constexpr size_t kMostKept = size_t{32} << 20;
constexpr size_t kLittleKept = size_t{256} << 10;
constexpr size_t kShareKept = 16;

constexpr int kOften = 2;  // so many results that died unwritten tell how the next ones end

constexpr size_t kMostDevices = 128;  // of a c10::DeviceIndex

struct Recorder {
  std::mutex commit;  // one commit at a time; never taken while holding the interpreter's lock
  Window open;
  Window spare;                       // an emptied window, for its memory
  const Window* in_flight = nullptr;  // being run
  std::vector<void*> freed_in_flight;
  std::atomic<bool> after_whole{false};  // nothing fuses with the last call
  uint64_t recent = 0;                   // hashes of the last four calls
  std::array<uint64_t, 2> before{};      // hashes at the last two places where windows may end
  std::unordered_set<uint64_t> places;   // `recent` where windows became too long
};

// Whether the window ends before a call, where nothing is lost by it: the call starts from memory,
// or nothing fuses with the last one.
std::optional<CommitReason> may_end(Recorder& recorder, const OpEntry& call) {
  if (call.op->starts_from_memory) {
    const auto hash = (recorder.recent ^ call.hash) * 0x9E3779B97F4A7C15ull;
    const bool lowest = hash <= recorder.before[0] && hash <= recorder.before[1];
    recorder.before = {recorder.before[1], hash};
    if (lowest && recorder.open.calls.size() >= kShortest)
      return CommitReason::boundary;
  }
  size_t made = 0;
  for (const auto& result : call.fresh)
    made += result.nbytes;
  // A library's kernel takes memory of its own while all that the window makes has its already.
  const auto& window = recorder.open;
  const auto kept = window.kept_bytes + (call.op->ends_in_memory ? window.made_bytes : 0);
  if (kept > kLittleKept && kept > made / kShareKept)
    return CommitReason::memory;
  return std::nullopt;
}

// Whether the window that was just recorded into has to end.
std::optional<CommitReason> must_end(Recorder& recorder) {
  const auto& window = recorder.open;
  if (window.kept_bytes > kMostKept)
    return CommitReason::memory;
  if (window.calls.size() < kLongest / 2)
    return std::nullopt;
  if (recorder.places.count(recorder.recent) > 0)
    return CommitReason::boundary;
  if (window.calls.size() < kLongest)
    return std::nullopt;
  if (recorder.places.size() >= kMostPlaces)
    recorder.places.clear();
  recorder.places.insert(recorder.recent);
  return CommitReason::length;
}

struct State {
  // Guards everything here but `Recorder::commit`; held for a record, never for a run.
  std::mutex mutex;
  std::array<Recorder, kMostDevices> recorders;
  int64_t calls = 0;
  std::vector<int64_t> commits = std::vector<int64_t>(static_cast<int>(CommitReason::count_));
  ExecuteMode mode = ExecuteMode::reference;
};

// Leaked on purpose: tensors may die after static destructors have run.
State& state() {
  static auto* instance = new State();
  return *instance;
}

thread_local bool t_committing = false;
std::atomic<bool> g_recording{false};

thread_local OpKey t_key;

// Backward runs on the thread that asks for it, as it does on the CPU; a thread may have it
// otherwise again (`torch.autograd.set_multithreading_enabled`). A thread of autograd's own would
// bring OpenMP threads of its own, and when there are more of them than processors libgomp's go to
// sleep after every loop: waking them costs more than most loops take.
void keep_backward_here() {
  static thread_local bool kept = false;
  if (kept || c10::InferenceMode::is_enabled())
    return;  // the end of inference mode would undo it
  kept = true;
  c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
}

// Why a storage that is settled makes this thread commit.
thread_local CommitReason t_reason = CommitReason::host_read;

// Runs a call at once, for a reason that is counted. It settles the storages that it touches.
void run_now(const OpInfo& info, Stack* stack, CommitReason reason, std::string_view why) {
  if (g_recording.load(std::memory_order_relaxed) && !t_committing) {
    counter(c10::str("at once: ", why), info.name).calls.fetch_add(1, std::memory_order_relaxed);
  }
  const auto restore =
      c10::make_scope_exit([previous = std::exchange(t_reason, reason)] { t_reason = previous; });
  run_reference(info.op, stack);
}

// Runs a call whose key is new, and learns from it.
void run_and_learn(OpInfo& info, Stack* stack, bool open) {
  const auto& schema = info.op.schema();
  const std::vector<IValue> arguments(stack->end() - schema.arguments().size(), stack->end());
  OpKey key;  // over arguments that live until the end
  key.build(arguments, open);
  std::vector<TensorBefore> before;
  for (const auto* tensor : key.tensors())
    before.emplace_back(*tensor);
  run_now(info, stack, CommitReason::first_call, "its first call with these layouts");
  auto entry =
      learn(info, key, open, before, arguments, torch::jit::last(*stack, schema.returns().size()));
  auto& s = state();
  std::lock_guard<std::mutex> lock(s.mutex);
  if (info.find(key) == nullptr)
    info.entries.emplace(key.hash(), std::move(entry));
}

}  // namespace

Recording RecordKernel::record(c10::ArrayRef<IValue> arguments) {
  Recording call;
  keep_backward_here();
  for (size_t i = 0; info_.counts_writes && i < arguments.size(); ++i) {
    if (!info_.written[i])
      continue;
    for (const IValue& written : arguments[i].toListRef())
      written.toTensor().unsafeGetTensorImpl()->bump_version();
  }
  if (!g_recording.load(std::memory_order_relaxed) || !info_.recordable || t_committing) {
    call.why = "its results' layouts are known only once it ran";
    return call;
  }
  auto& s = state();
  OpKey& key = t_key;
  auto& open = call.open = info_.open_scalars.load(std::memory_order_relaxed);
  if (!key.build(arguments, open)) {
    call.why = "an argument is no plain tensor of one device";
    return call;
  }
  for (const auto* tensor : key.tensors()) {
    if (!is_device_storage(tensor->storage())) {
      call.why = "memory that somebody else allocated";
      return call;
    }
  }
  auto* entry = info_.find_latest(key);
  if (entry == nullptr) {
    std::lock_guard<std::mutex> lock(s.mutex);
    entry = info_.find(key);
    if (entry == nullptr && info_.may_open && !open && !key.scalars().empty()) {
      // The second value of a number opens the op's numbers.
      OpKey without;
      without.build(arguments, true);
      if (++info_.spread[without.hash()] > 1) {
        info_.open_scalars = open = true;
        key = without;
        entry = info_.find(key);
      }
    }
  }
  if (entry == nullptr || !entry->recorded) {
    if (entry != nullptr)
      call.why = entry->reason;
    return call;
  }
  call.entry = entry;

  const auto device = key.device();
  if (info_.starts_from_memory || s.recorders[device].after_whole) {
    std::optional<CommitReason> ends;
    {
      std::lock_guard<std::mutex> lock(s.mutex);
      ends = may_end(s.recorders[device], *entry);
    }
    if (ends)
      commit(device, *ends);
  }
  for (const auto k : entry->resized) {
    const auto& layout = entry->tensors[k];
    auto& impl = *key.tensors()[k]->unsafeGetTensorImpl();
    impl.set_sizes_and_strides(layout.sizes, layout.strides);
    auto& storage = *impl.unsafe_storage().unsafeGetStorageImpl();
    resize_storage(storage, layout.nbytes);
    note_fresh(storage);
  }
  // What died unwritten so far will again, so that no memory has to wait for it.
  const bool brief = entry->large && entry->died_early.load(std::memory_order_relaxed) == kOften;
  auto layout = entry->fresh.begin();
  for (const auto& result : entry->results) {
    for (const bool defined : result.defined) {
      call.results.emplace_back();
      if (!defined)
        continue;
      call.results.back() = tensor_over(new_storage(layout->nbytes, device, brief), *layout);
      ++layout;
    }
  }

  std::optional<CommitReason> reason;
  {
    std::lock_guard<std::mutex> lock(s.mutex);
    auto& recorder = s.recorders[device];
    auto& window = recorder.open;
    window.calls.push_back(
        {entry,
         static_cast<uint32_t>(window.slots_of_calls.size()),
         static_cast<uint32_t>(window.scalars.size())});
    for (size_t k = 0; k < key.tensors().size(); ++k) {
      auto& storage = *key.tensors()[k]->storage().unsafeGetStorageImpl();
      const auto index =
          window.slot_of(storage._mutable_data_ptr_no_checks().get(), storage.nbytes());
      auto& slot = window.slots[index];
      slot.used = true;
      slot.written = slot.written || entry->written[k];
      window.slots_of_calls.push_back(index);
    }
    for (const auto& tensor : call.results) {
      if (!tensor.defined())
        continue;
      auto& storage = *tensor.storage().unsafeGetStorageImpl();
      const auto index =
          window.fresh_slot(storage._mutable_data_ptr_no_checks().get(), storage.nbytes());
      window.slots[index].used = window.slots[index].written = true;
      window.made_bytes += storage.nbytes();
      if (entry->large)
        window.large.emplace_back(entry, index);
      window.slots_of_calls.push_back(index);
    }
    if (open)
      window.scalars.insert(window.scalars.end(), key.scalars().begin(), key.scalars().end());
    ++s.calls;
    recorder.recent = recorder.recent << 16 | (entry->hash & 0xffff);
    recorder.after_whole = info_.ends_in_memory;
    reason = must_end(recorder);
  }
  info_.counter->calls.fetch_add(1, std::memory_order_relaxed);

  if (reason)
    commit(device, *reason);
  return call;
}

void RecordKernel::run(const Recording& call, Stack* stack) {
  if (call.why.empty())
    return run_and_learn(info_, stack, call.open);
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

void RecordKernel::operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  const auto arguments = torch::jit::last(*stack, info_.written.size());
  auto call = record(arguments);
  if (call.entry == nullptr)
    return run(call, stack);
  Stack results;
  give(call, arguments, &results);
  torch::jit::drop(*stack, arguments.size());
  std::move(results.begin(), results.end(), std::back_inserter(*stack));
}

void set_execute_mode(ExecuteMode mode) {
  commit_all(CommitReason::request);
  state().mode = mode;
  g_recording = mode != ExecuteMode::reference;
}

ExecuteMode execute_mode() {
  return state().mode;
}

void commit(c10::DeviceIndex device, CommitReason reason) {
  if (t_committing)
    return;
  auto& s = state();
  auto& recorder = s.recorders[device];
  {
    std::lock_guard<std::mutex> lock(s.mutex);
    if (recorder.open.calls.empty() && recorder.in_flight == nullptr)
      return;
  }
  std::optional<pybind11::gil_scoped_release_simple> no_gil;
  if (Py_IsInitialized() && PyGILState_Check())
    no_gil.emplace();
  std::unique_lock<std::mutex> one(recorder.commit);
  Window window;
  std::vector<void*> outlive;
  {
    std::lock_guard<std::mutex> lock(s.mutex);
    if (recorder.open.calls.empty())
      return;
    std::swap(window, recorder.open);
    std::swap(recorder.open, recorder.spare);
    recorder.in_flight = &window;
    for (const auto& [entry, index] : window.large) {
      const auto& slot = window.slots[index];
      if (slot.alive) {
        // Windows end anywhere while calls are new; later ones tell.
        if (reason != CommitReason::first_call)
          entry->died_early = std::numeric_limits<int>::min();
        outlive.push_back(slot.block);
      } else if (entry->died_early < kOften) {
        ++entry->died_early;
      }
    }
    ++s.commits[static_cast<int>(reason)];
  }
  t_committing = true;
  const auto finish = c10::make_scope_exit([&] {
    std::vector<void*> blocks;
    {
      std::lock_guard<std::mutex> lock(s.mutex);
      recorder.in_flight = nullptr;
      blocks.swap(recorder.freed_in_flight);
      blocks.insert(blocks.end(), window.kept.begin(), window.kept.end());
      window.clear();
      std::swap(window, recorder.spare);
    }
    t_committing = false;
    one.unlock();
    for (void* block : blocks)
      device_allocator().release_block(block);
  });
  for (void* block : outlive)
    device_allocator().back_block(block);
  const c10::DeviceGuard guard(c10::Device(kTenon, device));
  run_window(window, device, s.mode, [&](const WindowSlot& slot) {
    {
      std::lock_guard<std::mutex> lock(s.mutex);
      const auto kept = std::find(window.kept.begin(), window.kept.end(), slot.block);
      if (kept == window.kept.end())
        return;
      window.kept.erase(kept);
      window.by_block.erase(slot.block);
    }
    device_allocator().release_block(slot.block);
  });
}

void commit_all(CommitReason reason) {
  for (c10::DeviceIndex device = 0; device < device_count(); ++device)
    commit(device, reason);
}

void settle(const c10::StorageImpl& storage) {
  if (storage.device_type() != kTenon || t_committing || storage.data() == nullptr)
    return;
  const auto device = storage.device().index();
  auto& s = state();
  {
    std::lock_guard<std::mutex> lock(s.mutex);
    auto& recorder = s.recorders[device];
    const auto index = recorder.open.find(storage.data());
    bool waits = recorder.in_flight != nullptr && recorder.in_flight->find(storage.data()) >= 0;
    if (index >= 0) {
      auto& slot = recorder.open.slots[index];
      waits = waits || slot.used;
      // Made in this window, and the host is about to give it contents.
      slot.fresh = slot.fresh && slot.used;
    }
    if (!waits)
      return;
  }
  commit(device, t_reason);
}

bool keep_block(void* block, c10::DeviceIndex device) {
  auto& s = state();
  std::lock_guard<std::mutex> lock(s.mutex);
  auto& recorder = s.recorders[device];
  auto& window = recorder.open;
  const auto found = window.by_block.find(block);
  if (found != window.by_block.end()) {
    auto& slot = window.slots[found->second];
    slot.alive = false;
    window.by_block.erase(found);
    if (slot.fresh && slot.used)
      window.made_bytes -= slot.nbytes;
    if (!slot.fresh && slot.used) {
      window.kept.push_back(block);
      window.kept_bytes += slot.nbytes;
      return true;
    }
  }
  if (recorder.in_flight != nullptr && recorder.in_flight->find(block) >= 0) {
    recorder.freed_in_flight.push_back(block);
    return true;
  }
  return false;
}

bool record_copy(const at::Tensor& self, const at::Tensor& src, bool non_blocking) {
  if (!g_recording.load(std::memory_order_relaxed) || t_committing)
    return false;
  static auto* kernel =
      new RecordKernel(c10::Dispatcher::singleton().findSchemaOrThrow("aten::copy_", ""));
  Stack stack{self, src, non_blocking};
  (*kernel)(kernel->op(), {}, &stack);
  return true;
}

void note_fresh(const c10::StorageImpl& storage) {
  if (!g_recording.load(std::memory_order_relaxed) || t_committing || storage.data() == nullptr)
    return;
  auto& s = state();
  std::lock_guard<std::mutex> lock(s.mutex);
  auto& window = s.recorders[storage.device().index()].open;
  // Without calls there is no commit to forget storages by.
  if (window.calls.empty() && window.slots.size() >= kLongest)
    window.clear();
  window.fresh_slot(const_cast<void*>(storage.data()), storage.nbytes());
}

std::pair<int64_t, std::vector<int64_t>> record_counts() {
  auto& s = state();
  std::lock_guard<std::mutex> lock(s.mutex);
  return {s.calls, s.commits};
}

}  // namespace tenon
