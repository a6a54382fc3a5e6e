#include "record/recorder.h"

#include <algorithm>
#include <vector>

#include "device/target.h"
#include "record/graph.h"

namespace tenon {
namespace {

// A window may end before a call that starts from memory anyway, if the last few calls hash lower
// there than at the two places before: so windows fall at the same places of a loop whatever came
// before, equal layers make equal windows, and what changes in one layer changes the windows around
// it.
constexpr size_t kShortest = 16;
// Without such a place a window of more than half of this ends where the last 64 calls hash lowest
// among this many places, and at this length in any case. So a loop of no more calls has its
// windows at one place, whatever ran before it, in every process.
constexpr int64_t kLongest = 512;
// Memory that eager execution would have freed by now, in bytes. When the window runs, each piece
// goes after its last use, before what is made later gets any; until then nothing is made.
constexpr size_t kMostHeld = size_t{32} << 20;

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
