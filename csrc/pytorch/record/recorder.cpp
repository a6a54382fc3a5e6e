#include "record/recorder.h"

#include <algorithm>
#include <thread>
#include <vector>

#include "device/profile.h"
#include "device/storage.h"
#include "device/target.h"
#include "record/graph.h"
#include "record/record.h"

namespace tenon {
namespace {

// A window may end before a call that starts from memory anyway. It does if the last few calls hash
// lower there than at the two places before. So windows fall at the same places of a loop whatever
// came before. Equal layers make equal windows, and what changes in one layer changes the windows
// around it.
constexpr size_t kShortest = 16;
// Without such a place, a window of more than half of this ends where its calls hash lowest. That
// is the lowest hash of the last 64 calls, among this many places. At this length it ends in any
// case. So a loop of no more calls has its windows at one place, whatever ran before it, in every
// process.
constexpr int64_t kLongest = 512;
// Memory that eager execution would have freed by now, in bytes. When the window runs, each piece
// goes after its last use, before what is made later gets any; until then nothing is made.
constexpr size_t kMostHeld = size_t{32} << 20;

// Until another thread has an address that it asked for. In the child of a fork it never will.
constexpr int kMostTries = 10000;

// All recorders, and those of the calling thread. A recorder whose thread ended stays until its
// window was submitted, which the next thread does that begins to record: it gets no more calls.
std::vector<std::shared_ptr<Recorder>>& recorders() {
  static auto* instance = new std::vector<std::shared_ptr<Recorder>>();
  return *instance;
}

// The one that the thread used last: plain memory, which costs nothing to reach.
thread_local Recorder* t_last = nullptr;

struct ThreadRecorders {
  std::vector<std::shared_ptr<Recorder>> own;

  ~ThreadRecorders() {
    t_last = nullptr;
    std::lock_guard<std::mutex> lock(record_mutex());
    for (const auto& recorder : own) {
      recorder->ended = true;
      forget_if_ended(*recorder);
    }
  }
};
thread_local ThreadRecorders t_recorders;

std::shared_ptr<Recorder> find_own(c10::DeviceIndex device, c10::StreamId stream) {
  for (const auto& recorder : t_recorders.own) {
    if (recorder->device == device && recorder->stream == stream)
      return recorder;
  }
  return nullptr;
}

template <class Condition>
std::vector<std::shared_ptr<Recorder>> pending_where(Condition&& condition) {
  std::vector<std::shared_ptr<Recorder>> found;
  std::lock_guard<std::mutex> lock(record_mutex());
  for (const auto& recorder : recorders()) {
    if (!recorder->open.calls.empty() && !recorder->captured && condition(*recorder))
      found.push_back(recorder);
  }
  return found;
}

// Buffers belong to one window while something writes them: what other threads and streams recorded
// with the call's buffers is submitted first, unless both only read.
void take_from_others(const Recorder& recorder, const OpKey& key, const OpEntry& entry) {
  for (size_t k = 0; k < key.tensors().size(); ++k) {
    auto* buffer = own_buffer(storage_of(*key.tensors()[k]));
    for (;;) {
      std::shared_ptr<Recorder> other;
      if (buffer != nullptr) {
        std::lock_guard<std::mutex> lock(record_mutex());
        for (const auto& use : buffer->uses) {
          if (use.window->recorder != &recorder &&
              (entry.written[k] || use.window->slots[use.slot].written))
            other = use.window->recorder->shared_from_this();
        }
      }
      if (!other)
        break;
      submit(*other, CommitReason::handover);
    }
  }
}

// Says in the profile which call of which window it is, and how many bytes it makes: `known` slots
// were there before.
void note_call(Profiled& profiled, Window& window, const std::string& line, size_t known) {
  if (window.profiled == 0)
    window.profiled = next_profiled_window();
  profiled->window = window.profiled;
  profiled->call = static_cast<int32_t>(window.calls.size() - 1);
  if (!line.empty())
    profiled->line = subject_of({line});
  for (size_t k = known; k < window.slots.size(); ++k) {
    const auto& slot = window.slots[k];
    profiled->amount += slot.fresh && slot.written ? static_cast<int64_t>(slot.nbytes) : 0;
  }
}

}  // namespace

Recorder::Recorder(c10::DeviceIndex device, c10::StreamId stream) : device(device), stream(stream) {
  open.recorder = this;
}

std::optional<CommitReason> Recorder::ends_before(const OpEntry& call) {
  const auto hash = (recent_ ^ call.hash) * 0x9E3779B97F4A7C15ull;
  const bool lowest = hash <= before_[0] && hash <= before_[1];
  before_ = {before_[1], hash};
  if (lowest && open.calls.size() >= kShortest)
    return CommitReason::boundary;
  return std::nullopt;
}

std::optional<CommitReason> Recorder::has_to_end() {
  if (open.uses_shared)
    return CommitReason::shared;
  if (open.held_bytes > kMostHeld)
    return CommitReason::memory;
  const auto length = static_cast<int64_t>(open.calls.size());
  if (length >= kSoon && in_loop_ > kSoon && context_ == lowest_in_loop_)
    return CommitReason::boundary;
  if (length >= kLongest / 2 && !lowest_.empty() && lowest_.front().number == noted_)
    return CommitReason::boundary;
  if (length >= kLongest)
    return CommitReason::length;
  return std::nullopt;
}

// Whether the last 64 calls were the same at a place that was not long ago.
bool Recorder::is_repeated() {
  // Two places of a round may share an entry of `repeats_`, which then tells of neither.
  bool found = round_ > 0 && contexts_[(noted_ - round_) % kSoon] == context_;
  auto& before = repeats_[context_ % repeats_.size()];
  if (!found) {
    found = before.hash == context_ && before.number > noted_ - kSoon;
    round_ = found ? noted_ - before.number : 0;
  }
  before = {context_, noted_};
  contexts_[noted_ % kSoon] = context_;
  return found;
}

void Recorder::note(const OpEntry& call) {
  recent_ = recent_ << 16 | (call.hash & 0xffff);
  context_ = (context_ << 1) + call.hash;
  ++noted_;
  while (!lowest_.empty() && lowest_.front().number <= noted_ - kLongest)
    lowest_.pop_front();
  if (is_repeated()) {
    lowest_in_loop_ = ++in_loop_ == 1 ? context_ : std::min(lowest_in_loop_, context_);
    return;
  }
  in_loop_ = 0;
  while (!lowest_.empty() && lowest_.back().hash >= context_)
    lowest_.pop_back();
  lowest_.push_back({context_, noted_});
}

// Appends the call to the window. False: a buffer is another window's, or its address is being told
// to another thread. The latter is waited for, unless this is the last try.
bool Recorder::try_append(
    const OpKey& key, const Recording& call, const std::string& line, bool at_last) {
  const auto& entry = *call.entry;
  auto& window = open;
  // Nearly all buffers are of this window alone, or of none.
  for (size_t k = 0; k < key.tensors().size(); ++k) {
    auto& storage = storage_of(*key.tensors()[k]);
    auto* buffer = own_buffer(storage);
    if (buffer == nullptr)
      continue;
    for (const auto& use : buffer->uses) {
      if (use.window->recorder != this && (entry.written[k] || use.window->slots[use.slot].written))
        return false;
    }
    if (!withdraw_address(storage, *buffer, at_last))
      return false;
  }
  ++entry.in_windows;
  window.calls.push_back(
      {&entry,
       static_cast<uint32_t>(window.slots_of_calls.size()),
       static_cast<uint32_t>(window.numbers.size())});
  if (call.by_rule)
    window.by_rule.push_back(call.by_rule);
  if (!line.empty()) {
    window.lines.resize(window.calls.size());
    window.lines.back() = line;
  }
  for (size_t k = 0; k < key.tensors().size(); ++k) {
    auto& storage = storage_of(*key.tensors()[k]);
    auto* buffer = own_buffer(storage);
    const auto index = window.slot_of(buffer, storage.nbytes());
    window.slots_of_calls.push_back(index);
    if (entry.written[k]) {
      window.slots[index].written = true;
      if (buffer != nullptr)
        buffer->has_contents = true;
    }
  }
  for (const auto& tensor : call.results) {
    if (!tensor.defined())
      continue;
    auto& storage = storage_of(tensor);
    auto* buffer = own_buffer(storage);
    const auto index = window.add_result(buffer, storage.nbytes());
    window.slots[index].written = true;
    if (buffer != nullptr)
      buffer->has_contents = true;
    window.slots_of_calls.push_back(index);
  }
  if (call.open)
    window.numbers.insert(window.numbers.end(), key.scalars().begin(), key.scalars().end());
  return true;
}

std::optional<CommitReason> Recorder::append(
    const OpKey& key, const Recording& call, const std::string& line, Profiled& profiled) {
  for (int tries = 0;; ++tries) {
    {
      std::lock_guard<std::mutex> lock(record_mutex());
      const auto known = open.slots.size();
      if (try_append(key, call, line, /*at_last=*/tries > kMostTries)) {
        count_recorded_call();
        if (C10_UNLIKELY(static_cast<bool>(profiled)))
          note_call(profiled, open, line, known);
        note(*call.entry);
        return has_to_end();
      }
    }
    take_from_others(*this, key, *call.entry);
    std::this_thread::yield();
  }
}

Recorder& recorder_of(c10::DeviceIndex device) {
  const auto stream = current_stream_id(device);
  if (t_last != nullptr && t_last->device == device && t_last->stream == stream)
    return *t_last;
  auto found = find_own(device, stream);
  if (!found) {
    for (const auto& ended : pending_where([](auto& r) { return r.ended; }))
      submit(*ended, CommitReason::handover);
    found = std::make_shared<Recorder>(device, stream);
    t_recorders.own.push_back(found);
    std::lock_guard<std::mutex> lock(record_mutex());
    recorders().push_back(found);
  }
  t_last = found.get();
  return *t_last;
}

size_t recorder_count() {
  std::lock_guard<std::mutex> lock(record_mutex());
  return recorders().size();
}

void forget_if_ended(const Recorder& recorder) {
  if (recorder.ended && recorder.open.calls.empty())
    std::erase_if(recorders(), [&](const auto& one) { return one.get() == &recorder; });
}

void commit(c10::DeviceIndex device, CommitReason reason) {
  if (reason == CommitReason::synchronize)
    refuse_in_capture("to wait for the device");
  for (const auto& recorder : pending_where([&](auto& r) { return r.device == device; }))
    submit(*recorder, reason);
}

void commit_all(CommitReason reason) {
  for (const auto& recorder : pending_where([](auto&) { return true; }))
    submit(*recorder, reason);
}

void commit_stream(c10::Stream stream, CommitReason reason) {
  if (const auto recorder = find_own(stream.device_index(), stream.id()))
    submit(*recorder, reason);
}

void end_window_at_read(c10::DeviceIndex device) {
  const auto recorder = find_own(device, current_stream_id(device));
  if (recorder && !recorder->captured)
    submit(*recorder, CommitReason::host_read);
}

void raise_unseen(c10::DeviceIndex device) {
  for (const auto& recorder : t_recorders.own) {
    if (recorder->device != device)
      continue;
    std::shared_ptr<Failure> unseen;
    {
      std::lock_guard<std::mutex> lock(record_mutex());
      unseen.swap(recorder->unseen);
    }
    if (unseen && !unseen->seen())
      unseen->raise();  // those of other streams are for the next call
  }
}

}  // namespace tenon
