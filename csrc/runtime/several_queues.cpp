#include "runtime/several_queues.h"

#include <algorithm>
#include <utility>

#include "runtime/error.h"
#include "runtime/touched_memory.h"

namespace tenon {
namespace {

// What one queue got between two of its commits.
struct Part {
  uint64_t number;
  Ticket ticket;  // nullptr: it is not committed yet
  TouchedMemory read, written;
};

// One of the queues. Its parts are numbered from 1, and finish in that order.
struct Lane {
  std::unique_ptr<Queue> queue;
  std::vector<Part> parts;       // those that the device may not have passed
  uint64_t last = 0;             // number of a part
  Ticket ticket;                 // of the last commit
  std::vector<uint64_t> behind;  // by lane: what is enqueued next comes after its parts up to there

  bool is_open() const {
    return !parts.empty() && parts.back().ticket == nullptr;
  }
  Part& open() {
    if (!is_open())
      parts.push_back({++last, nullptr, {}, {}});
    return parts.back();
  }
};

class CommitOfSeveral final : public Commit {
 public:
  // The first `own` are of what was enqueued since the commit before, the others of what was
  // before.
  CommitOfSeveral(std::vector<Ticket> all, size_t own) : all_(std::move(all)), own_(own) {}

  bool passed() override {
    return std::ranges::all_of(all_, [](const Ticket& one) { return one->passed(); });
  }
  void wait() override {
    for (const auto& one : all_)
      one->wait();
  }
  double seconds() override {
    double last = 0;
    for (const auto& one : all_)
      last = std::max(last, one->seconds());
    return last;
  }
  std::optional<double> started() override {
    auto first = all_.front()->started();
    for (const auto& one : own_tickets()) {
      const auto started = one->started();
      first = first && started ? std::optional(std::min(*first, *started)) : std::nullopt;
    }
    return first;
  }
  std::shared_ptr<Failure> failure() override {
    for (const auto& one : own_tickets()) {
      if (auto failure = one->failure())
        return failure;
    }
    return nullptr;
  }
  Ticket own() override {
    const auto own = own_tickets();
    return own_ == 1 ? all_.front() : all_of({own.begin(), own.end()});
  }

 private:
  std::span<const Ticket> own_tickets() const {
    return std::span(all_).first(own_);
  }

  const std::vector<Ticket> all_;
  const size_t own_;
};

class SeveralQueues final : public Queue {
 public:
  SeveralQueues(std::unique_ptr<Queue> kernels, std::vector<std::unique_ptr<Queue>> copies)
      : lanes_(1 + copies.size()) {
    lanes_.front().queue = std::move(kernels);
    for (size_t k = 0; k < copies.size(); ++k)
      lanes_[k + 1].queue = std::move(copies[k]);
    for (auto& lane : lanes_)
      lane.behind = std::vector<uint64_t>(lanes_.size());
  }

  void copy(void* dst, const void* src, size_t nbytes, CopyKind kind) override {
    const auto lane = lane_of_copy(src, nbytes, kind);
    touch(lane, src, nbytes, /*writes=*/false);
    touch(lane, dst, nbytes, /*writes=*/true);
    lanes_[lane].queue->copy(dst, src, nbytes, kind);
  }

#ifndef TENON_ONE_DEVICE
  bool copies_from_devices() const override {
    return lanes_[kKernels].queue->copies_from_devices();
  }

  void copy_from(void* dst, const void* src, int device, size_t nbytes) override {
    touch(kKernels, dst, nbytes, /*writes=*/true);
    lanes_[kKernels].queue->copy_from(dst, src, device, nbytes);
  }
#endif

  void launch(const Launch& launch) override {
    touch_all(launch.pointers, launch.nbytes);
    lanes_[kKernels].queue->launch(launch);
  }

  void record(RecordedLaunches& made, const std::function<bool()>& launches) override {
    recording_ = &made;
    try {
      lanes_[kKernels].queue->record(made, launches);
    } catch (...) {
      recording_ = nullptr;
      throw;
    }
    recording_ = nullptr;
  }

  void replay(const RecordedLaunches& recording) override {
    recording.touched.for_each(
        [&](const void* start, size_t nbytes) { touch(kKernels, start, nbytes, /*writes=*/true); });
    lanes_[kKernels].queue->replay(recording);
  }

  bool runs_calls() const override {
    return lanes_[kKernels].queue->runs_calls();
  }

  void call(Work work, std::span<void* const> pointers, std::span<const size_t> nbytes) override {
    touch_all(pointers, nbytes);
    lanes_[kKernels].queue->call(std::move(work), pointers, nbytes);
  }

 private:
  static constexpr size_t kKernels = 0;

  size_t lane_of_copy(const void* src, size_t nbytes, CopyKind kind) const {
    if (kind == CopyKind::device_to_device)
      return kKernels;
    if (kind == CopyKind::host_to_device)
      return nbytes < kLeastBytesApart ? kKernels : kKernels + 1;
    const auto& latest = lanes_[kKernels].parts;
    const bool behind_it = !latest.empty() && latest.back().written.overlaps(src, nbytes);
    return nbytes < kLeastBytesApart && (latest.empty() || behind_it) ? kKernels
                                                                      : lanes_.size() - 1;
  }

  // What a kernel or a call does with its memory nobody says.
  void touch_all(std::span<void* const> pointers, std::span<const size_t> nbytes) {
    if (pointers.size() != nbytes.size())
      fail(ErrorKind::error, "work of a device of several queues has to say what it touches");
    for (size_t k = 0; k < pointers.size(); ++k)
      touch(kKernels, pointers[k], nbytes[k], /*writes=*/true);
  }

  // Before something is enqueued that touches this memory.
  void touch(size_t number, const void* start, size_t nbytes, bool writes) {
    if (recording_ != nullptr)
      return recording_->touched.add(start, nbytes);
    auto& lane = lanes_[number];
    for (size_t other = 0; other < lanes_.size(); ++other) {
      if (other != number)
        come_after(lane, other, start, nbytes, writes);
    }
    auto& part = lane.open();
    (writes ? part.written : part.read).add(start, nbytes);
  }

  void come_after(Lane& lane, size_t number, const void* start, size_t nbytes, bool writes) {
    auto& other = lanes_[number];
    const auto conflicts = [&](const Part& part) {
      return part.written.overlaps(start, nbytes) || (writes && part.read.overlaps(start, nbytes));
    };
    const auto found = std::ranges::find_if(other.parts.rbegin(), other.parts.rend(), conflicts);
    if (found == other.parts.rend() || found->number <= lane.behind[number])
      return;
    if (found->ticket == nullptr)
      commit(other);
    lane.queue->after(found->ticket);
    lane.behind[number] = found->number;
  }

  void commit(Lane& lane) {
    lane.ticket = lane.queue->commit();
    since_.push_back(lane.ticket);
    if (lane.is_open())
      lane.parts.back().ticket = lane.ticket;
  }

  Ticket start() override {
    for (auto& lane : lanes_) {
      if (lane.is_open())
        commit(lane);
    }
    if (since_.empty())  // then it is of all that was before
      commit(lanes_[kKernels]);
    auto all = std::exchange(since_, {});
    const auto own = all.size();
    for (auto& lane : lanes_) {
      auto& parts = lane.parts;
      const auto runs = [](const Part& part) { return !part.ticket->passed(); };
      parts.erase(parts.begin(), std::ranges::find_if(parts, runs));
      if (lane.ticket && std::ranges::find(all, lane.ticket) == all.end())
        all.push_back(lane.ticket);
    }
    return shared<CommitOfSeveral>(std::move(all), own);
  }

  std::vector<Lane> lanes_;                // the first is for kernels
  std::vector<Ticket> since_;              // commits of the queues since the last one of all
  RecordedLaunches* recording_ = nullptr;  // of what is launched; nullptr: it is enqueued
};

}  // namespace

Ticket all_of(std::vector<Ticket> commits) {
  const auto count = commits.size();
  return shared<CommitOfSeveral>(std::move(commits), count);
}

std::unique_ptr<Queue> several_queues(
    std::unique_ptr<Queue> kernels, std::vector<std::unique_ptr<Queue>> copies) {
  return std::make_unique<SeveralQueues>(std::move(kernels), std::move(copies));
}

}  // namespace tenon
