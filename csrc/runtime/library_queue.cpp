#include "runtime/library_queue.h"

#include <atomic>
#include <utility>

namespace tenon {

// A commit of a queue: the tickets of its parts, as others took turns with it. The queue is in
// order, so it has passed with the last one. Without any there was nothing to commit.
class LibraryCommit final : public Commit {
 public:
  using Parts = std::vector<std::shared_ptr<const LibraryTicket>>;
  explicit LibraryCommit(Parts parts) : parts_(std::move(parts)) {
    if (parts_.empty())
      note_end();
  }
  // null: it has passed.
  const LibraryTicket* last() const {
    return over_ ? nullptr : parts_.back().get();
  }
  bool passed() override {
    if (!over_ && parts_.back()->passed())
      note_end();
    return over_;
  }
  void wait() override {
    if (over_)
      return;
    tenon_status status{};
    parts_.back()->wait(status);  // `failure` asks what came of it
    note_end();
  }
  double seconds() override {
    if (parts_.empty() || parts_.back()->table.seconds == nullptr)
      return seconds_;
    const auto& end = *parts_.back();
    return end.table.seconds(end.table.context, end.device, end.number);
  }
  std::optional<double> started() override {
    if (parts_.empty() || parts_.front()->table.started == nullptr)
      return std::nullopt;
    const auto& begin = *parts_.front();
    const auto found = begin.table.started(begin.table.context, begin.device, begin.number);
    return found > 0 ? std::optional(found) : std::nullopt;
  }
  std::shared_ptr<Failure> failure() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (; failure_ == nullptr && asked_ < parts_.size(); ++asked_) {
      const auto& part = *parts_[asked_];
      tenon_status status{};
      status.code = part.wait(status);
      if (status.code != TENON_OK)
        failure_ = Failure::of(error_of(status, part.library.name()));
    }
    return failure_;
  }

 private:
  void note_end() {
    double none = 0;
    seconds_.compare_exchange_strong(none, host_seconds());
    over_ = true;
  }

  const Parts parts_;
  std::atomic<bool> over_{false};
  std::atomic<double> seconds_{0};
  std::mutex mutex_;  // of what follows; not of forks: a child has no device
  size_t asked_ = 0;  // of how many parts it is known what came of them
  std::shared_ptr<Failure> failure_;
};

// Others may have queues of the same device: what one of them has enqueued is committed before
// another enqueues, so a ticket tells of the work of one alone.
class LibraryQueue final : public Queue {
 public:
  LibraryQueue(
      std::shared_ptr<TargetLibrary> library,
      int32_t device,
      int32_t number,
      TargetLibrary::PlaceOf place_of)
      : library_(std::move(library)),
        table_(library_->table_),
        device_(device),
        number_(number),
        place_of_(std::move(place_of)),
        shared_(library_->devices_[device]),
        line_(shared_.turns->lines[number]) {}
  ~LibraryQueue() override {
    if (!library_->is_here())
      return;
    drain();  // of memory that ends with whoever had it
    const std::lock_guard<std::mutex> lock(shared_.turns->mutex);
    if (line_.open_by == this) {
      line_.open_by = nullptr;
      line_.is_lost = true;
    }
  }

  void copy(void* dst, const void* src, size_t nbytes, CopyKind kind) override {
    const auto to = end(dst, kind == CopyKind::device_to_host);
    const auto from = end(const_cast<void*>(src), kind == CopyKind::host_to_device);
    in_turn([&](tenon_status* status) {
      return number_ == 0
                 ? table_.copy(table_.context, device_, &to, &from, nbytes, status)
                 : table_.copy_on(table_.context, device_, number_, &to, &from, nbytes, status);
    });
  }

#ifndef TENON_ONE_DEVICE
  bool copies_from_devices() const override {
    return table_.copy_from != nullptr;
  }

  void copy_from(void* dst, const void* src, int device, size_t nbytes) override {
    const auto to = place(dst), from = place(src);
    in_turn([&](tenon_status* status) {
      return table_.copy_from(table_.context, device_, to, device, from, nbytes, status);
    });
  }
#endif

  void after(const Ticket& ticket) override {
    const auto* last = static_cast<LibraryCommit&>(*ticket).last();
    if (last == nullptr)
      return;
    in_turn([&](tenon_status* status) {
      return table_.after(table_.context, device_, number_, last->number, status);
    });
  }

  void launch(const Launch& asked) override {
    if (table_.launch == nullptr)
      fail(ErrorKind::unsupported, "{} runs no kernels: its library has no 'launch'", name());
    const auto all = places(asked.pointers);
    tenon_launch launch{};
    launch.size = sizeof(launch);
    launch.kernel = reinterpret_cast<uintptr_t>(asked.kernel);
    launch.places = all.data();
    launch.place_count = all.size();
    launch.numbers = asked.numbers.data();
    launch.number_count = asked.numbers.size();
    launch.status = asked.status.empty() ? nullptr : asked.status.data();
    launch.status_count = asked.status.size();
    launch.next = static_cast<int32_t>(asked.next);
    launch.grid = asked.grid.data();
    launch.grid_count = asked.grid.size();
    launch.group = asked.group.data();
    launch.group_count = asked.group.size();
    launch.scratch = static_cast<uint64_t>(asked.scratch);
    launch.nbytes = asked.nbytes.data();
    in_turn([&](tenon_status* status) {
      return table_.launch(table_.context, device_, &launch, status);
    });
  }

  // It has the lock from its begin to its end: what others launched would be recorded as well.
  void record(RecordedLaunches& made, const std::function<bool()>& launches) override {
    if (table_.begin_recording == nullptr)
      return;
    const auto lock = turn();
    tenon_status status{};
    made.library = library_.get();
    made.device = device_;
    if (table_.begin_recording(table_.context, device_, &made.number, &status) != TENON_OK) {
      made.number = 0;
      return;
    }
    records_ = true;
    const bool is_whole = launches();
    records_ = false;
    if (!is_whole ||
        table_.end_recording(table_.context, device_, made.number, &status) != TENON_OK)
      library_->let_go(made);
  }

  void replay(const RecordedLaunches& recording) override {
    in_turn([&](tenon_status* status) {
      return table_.replay(table_.context, device_, recording.number, status);
    });
  }

  bool runs_calls() const override {
    return table_.call != nullptr;
  }

  void call(Work work, std::span<void* const> pointers, std::span<const size_t>) override {
    struct Given {
      Work work;
      size_t count;
    };
    const auto run = [](void* data, void* const* addresses) {
      const std::unique_ptr<Given> given(static_cast<Given*>(data));
      given->work({addresses, given->count});
    };
    const auto all = places(pointers);
    auto given = std::make_unique<Given>(Given{std::move(work), all.size()});
    in_turn([&](tenon_status* status) {
      return table_.call(table_.context, device_, run, given.get(), all.data(), all.size(), status);
    });
    given.release();  // `run` has it
  }

 private:
  // Calls a function of the library's with the lock of `turn`, and raises what it fails with.
  template <class F>
  void in_turn(const F& function) {
    in_turn(
        [](const void* f, tenon_status* status) { return (*static_cast<const F*>(f))(status); },
        &function);
  }
  void in_turn(int32_t (*call)(const void*, tenon_status*), const void* function) {
    tenon_status status{};
    const auto lock = turn();
    check_status(call(function, &status), status, name());
  }

  // The lock of what enqueues, and nobody else has anything open.
  std::unique_lock<std::mutex> turn() {
    if (records_)
      return {};
    library_->check_is_here();
    std::unique_lock<std::mutex> lock(shared_.turns->mutex);
    check_starts();
    if (line_.open_by != nullptr && line_.open_by != this) {
      tenon_status status{};
      check_status(line_.commit_open(line_.open_by, &status), status, name());
    }
    line_.open_by = this;
    line_.commit_open = [](void* queue, tenon_status* status) {
      return static_cast<LibraryQueue*>(queue)->commit_open(*status);
    };
    return lock;
  }

  // Under the lock, as what follows.
  void check_starts() const {
    if (line_.is_lost)
      fail(ErrorKind::device_lost, "{}: the device is lost since it refused to start work", name());
  }

  // Where nothing was enqueued the library gives the last ticket once more.
  int32_t commit_open(tenon_status& status) {
    uint64_t number = 0;
    const auto code = number_ == 0
                          ? table_.commit(table_.context, device_, &number, &status)
                          : table_.commit_on(table_.context, device_, number_, &number, &status);
    if (code != TENON_OK)
      return code;
    line_.open_by = nullptr;
    if (std::exchange(line_.last, number) == number)
      return code;
    parts_.push_back(shared<LibraryTicket>(*library_, table_, device_, number));
    if (number_ == 0)
      shared_.last = parts_.back();
    return code;
  }

  Ticket start() override {
    library_->check_is_here();
    const std::lock_guard<std::mutex> lock(shared_.turns->mutex);
    check_starts();
    if (line_.open_by == this) {
      tenon_status status{};
      const auto code = commit_open(status);
      const bool failed_before = std::exchange(fails_, code != TENON_OK);
      line_.is_lost = fails_ && failed_before;
      check_status(code, status, name());
    }
    if (last_ == nullptr || !parts_.empty())
      last_ = shared<LibraryCommit>(std::exchange(parts_, {}));
    return last_;
  }

  const std::string& name() const {
    return library_->name();
  }
  tenon_place place(const void* pointer) const {
    if (pointer == nullptr)
      return {0, 0};
    const auto [handle, offset] = place_of_(pointer);
    return {handle, offset};
  }
  std::vector<tenon_place> places(std::span<void* const> pointers) const {
    std::vector<tenon_place> all(pointers.size());
    for (size_t k = 0; k < all.size(); ++k)
      all[k] = place(pointers[k]);
    return all;
  }
  tenon_end end(void* pointer, bool of_host) const {
    return of_host ? tenon_end{pointer, {0, 0}} : tenon_end{nullptr, place(pointer)};
  }

  const std::shared_ptr<TargetLibrary> library_;
  const tenon_target_functions& table_;
  const int32_t device_, number_;
  const TargetLibrary::PlaceOf place_of_;
  TargetLibrary::Device& shared_;
  LibraryTurns::Line& line_;
  LibraryCommit::Parts parts_;  // of its work, since it was last asked to commit
  std::shared_ptr<LibraryCommit> last_;
  bool fails_ = false;    // the commit before did
  bool records_ = false;  // what is launched, by the lock
};

std::unique_ptr<Queue> library_queue(
    std::shared_ptr<TargetLibrary> library,
    int32_t device,
    int32_t number,
    TargetLibrary::PlaceOf place_of) {
  return std::make_unique<LibraryQueue>(std::move(library), device, number, std::move(place_of));
}

}  // namespace tenon
