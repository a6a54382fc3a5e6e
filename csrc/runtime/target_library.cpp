#include "runtime/target_library.h"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "runtime/archive.h"
#include "runtime/embed.h"
#include "runtime/forked.h"
#include "runtime/several_queues.h"

namespace tenon {
namespace {

constexpr const char* kFunction = "tenon_target";

void check(int32_t code, tenon_status& status, const std::string& name) {
  if (code == TENON_OK)
    return;
  status.code = code;
  throw error_of(status, name);
}

// What the library's table has; what is beyond its size is zero.
tenon_target_functions table_of(const tenon_target_functions& given, const std::string& path) {
  tenon_target_functions table{};
  constexpr auto kLeast = offsetof(tenon_target_functions, total_memory);
  if (given.size < kLeast || given.size > size_t{1} << 16)
    fail(
        ErrorKind::error,
        path,
        ": its table says that it has ",
        given.size,
        " bytes, and a tenon_target_functions has ",
        sizeof(table));
  std::memcpy(&table, &given, std::min(given.size, sizeof(table)));
  const auto lacks = [&](bool is_there, const char* field) {
    if (!is_there)
      fail(ErrorKind::error, path, ": its table lacks '", field, "', which a target has to have");
  };
  lacks(table.name != nullptr && table.name[0] != '\0', "name");
  lacks(table.devices >= 1, "devices");
  lacks(table.total_memory != nullptr, "total_memory");
  lacks(table.allocate != nullptr, "allocate");
  lacks(table.release != nullptr, "release");
  if (table.host_memory != 0)
    return table;
  lacks(table.copy != nullptr, "copy");
  lacks(table.commit != nullptr, "commit");
  lacks(table.passed != nullptr, "passed");
  lacks(table.wait != nullptr, "wait");
  lacks(
      table.begin_recording == nullptr ||
          (table.end_recording != nullptr && table.replay != nullptr &&
           table.free_recording != nullptr),
      "end_recording', 'replay' or 'free_recording");
  if (table.copy_queues <= 0)
    return table;
  lacks(table.copy_on != nullptr, "copy_on");
  lacks(table.commit_on != nullptr, "commit_on");
  lacks(table.after != nullptr, "after");
  return table;
}

}  // namespace

Error error_of(const tenon_status& status, const std::string& name) {
  const bool known = status.code >= TENON_ERROR && status.code <= TENON_OUT_OF_RANGE;
  const auto length = strnlen(status.text, sizeof(status.text));
  const std::string text(status.text, length);
  return {
      known ? static_cast<ErrorKind>(status.code) : ErrorKind::error,
      text_of(name, ": ", text.empty() ? text_of("it failed with code ", status.code) : text)};
}

// A ticket of a device, until nobody asks for it.
struct LibraryTicket {
  const TargetLibrary& library;
  const tenon_target_functions& table;
  const int32_t device;
  const uint64_t number;

  LibraryTicket(
      const TargetLibrary& library,
      const tenon_target_functions& table,
      int32_t device,
      uint64_t number)
      : library(library), table(table), device(device), number(number) {}
  ~LibraryTicket() {
    if (table.forget != nullptr && library.is_here())
      table.forget(table.context, device, number);
  }
  LibraryTicket(const LibraryTicket&) = delete;
  LibraryTicket& operator=(const LibraryTicket&) = delete;

  bool passed() const {
    library.check_is_here();
    return table.passed(table.context, device, number) != 0;
  }
  int32_t wait(tenon_status& status) const {
    library.check_is_here();
    return table.wait(table.context, device, number, &status);
  }
};

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

// Libraries stay open.
RecordedLaunches::~RecordedLaunches() {
  if (is_there())
    library->let_go(*this);
}

// `number`: 0 is the queue of kernels, the others are for copies. Others may have queues of the
// same device: what one of them has enqueued is committed before another enqueues, so a ticket
// tells of the work of one alone.
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
    tenon_status status{};
    const auto lock = turn();
    const auto code =
        number_ == 0
            ? table_.copy(table_.context, device_, &to, &from, nbytes, &status)
            : table_.copy_on(table_.context, device_, number_, &to, &from, nbytes, &status);
    check(code, status, name());
  }

  void after(const Ticket& ticket) override {
    const auto* last = static_cast<LibraryCommit&>(*ticket).last();
    if (last == nullptr)
      return;
    tenon_status status{};
    const auto lock = turn();
    check(table_.after(table_.context, device_, number_, last->number, &status), status, name());
  }

  void launch(const Launch& asked) override {
    if (table_.launch == nullptr)
      fail(ErrorKind::unsupported, name(), " runs no kernels: its library has no 'launch'");
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
    tenon_status status{};
    const auto lock = turn();
    check(table_.launch(table_.context, device_, &launch, &status), status, name());
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
    tenon_status status{};
    const auto lock = turn();
    check(table_.replay(table_.context, device_, recording.number, &status), status, name());
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
    tenon_status status{};
    const auto lock = turn();
    check(
        table_.call(table_.context, device_, run, given.get(), all.data(), all.size(), &status),
        status,
        name());
    given.release();  // `run` has it
  }

 private:
  // The lock of what enqueues, and nobody else has anything open.
  std::unique_lock<std::mutex> turn() {
    if (records_)
      return {};
    library_->check_is_here();
    std::unique_lock<std::mutex> lock(shared_.turns->mutex);
    check_starts();
    if (line_.open_by != nullptr && line_.open_by != this) {
      tenon_status status{};
      check(line_.commit_open(line_.open_by, &status), status, name());
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
      fail(ErrorKind::device_lost, name(), ": the device is lost since it refused to start work");
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
    parts_.push_back(std::make_shared<LibraryTicket>(*library_, table_, device_, number));
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
      check(code, status, name());
    }
    if (last_ == nullptr || !parts_.empty())
      last_ = std::make_shared<LibraryCommit>(std::exchange(parts_, {}));
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
    std::vector<tenon_place> all;
    all.reserve(pointers.size());
    for (const auto* pointer : pointers)
      all.push_back(place(pointer));
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

TargetLibrary::TargetLibrary(const tenon_target_functions& table, const SharedTarget& shared)
    : table_(table),
      name_(table.name),
      process_(process_number()),
      devices_(new Device[static_cast<size_t>(table.devices)]) {
  for (int32_t device = 0; device < table.devices; ++device)
    devices_[device].turns = &shared.devices[device];
}

bool TargetLibrary::is_here() const {
  return process_ == process_number();
}

void TargetLibrary::check_is_here() const {
  if (!is_here())
    fail(
        ErrorKind::device_lost,
        "this process was forked from one that opened ",
        name_,
        ", which stayed there: start it anew (by spawn), or open it in the child alone");
}

namespace {

// Opens a library of a target, or finds the one that is open.
void* handle_of(const char* path) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    fail(ErrorKind::error, "the library of a target does not open: ", dlerror());
  return library;
}

const SharedTarget* first_opened(void* library, const std::string& path, const SharedTarget* next) {
  const auto get = reinterpret_cast<tenon_target_function>(dlsym(library, kFunction));
  if (get == nullptr)
    fail(
        ErrorKind::error,
        path,
        " is no library of a target: it does not export '",
        kFunction,
        "' (see include/tenon.h)");
  tenon_status status{};
  const auto* functions = get(TENON_INTERFACE, &status);
  if (functions == nullptr) {
    if (status.code == TENON_OK)
      status.code = TENON_ERROR;
    const auto reason = error_of(status, path);
    throw Error(
        reason.kind,
        text_of(reason.what(), " (it was asked for version ", TENON_INTERFACE, " of tenon.h)"));
  }
  const auto table = table_of(*functions, path);
  auto* const devices = new LibraryTurns[static_cast<size_t>(table.devices)];
  for (int32_t device = 0; device < table.devices; ++device)
    devices[device].lines =
        new LibraryTurns::Line[1 + static_cast<size_t>(std::max(table.copy_queues, 0))];
  return new SharedTarget{library, functions, devices, next};
}

// That of libtenon_rt, where the process has it: it may have opened the library before the device's
// core was there.
decltype(&tenon_share_target) sharing_copy() {
  std::string path;
  dl_iterate_phdr(
      [](dl_phdr_info* object, size_t, void* path) {
        const std::string_view name = object->dlpi_name;
        if (name.substr(name.rfind('/') + 1) == "libtenon_rt.so")
          *static_cast<std::string*>(path) = name;
        return 0;
      },
      &path);
  void* library = path.empty() ? nullptr : dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD);
  void* share = library != nullptr ? dlsym(library, "tenon_share_target") : nullptr;
  return share != nullptr ? reinterpret_cast<decltype(&tenon_share_target)>(share)
                          : &tenon_share_target;
}

}  // namespace

std::shared_ptr<TargetLibrary> TargetLibrary::open(const std::string& path) {
  // Not of forks: a child opens no device. Leaked on purpose, as libraries stay open.
  static auto& mutex = *new std::mutex;
  static auto& opened = *new std::vector<std::pair<void*, std::shared_ptr<TargetLibrary>>>;
  const std::lock_guard<std::mutex> lock(mutex);
  void* library = handle_of(path.c_str());
  for (const auto& [handle, known] : opened) {
    if (handle == library)
      return known;
  }
  tenon_status status{};
  const auto* shared = sharing_copy()(path.c_str(), kTurnsLayout, &status);
  if (shared == nullptr)
    throw Error(static_cast<ErrorKind>(status.code), status.text);
  const std::shared_ptr<TargetLibrary> made(
      new TargetLibrary(table_of(*shared->functions, path), *shared));
  opened.emplace_back(library, made);
  return made;
}

std::shared_ptr<TargetLibrary> open_target(const std::optional<std::string>& path, int32_t device) {
  if (!path) {
    if (device != 0)
      fail(ErrorKind::out_of_range, "this processor is device 0, and no other");
    return nullptr;
  }
  auto library = TargetLibrary::open(*path);
  if (device < 0 || device >= library->devices())
    fail(
        ErrorKind::out_of_range,
        library->name(),
        " has ",
        library->devices(),
        " devices, counted from 0, and no device ",
        device);
  return library;
}

uint64_t TargetLibrary::total_memory(int32_t device) const {
  return table_.total_memory(table_.context, device);
}

uintptr_t TargetLibrary::allocate(size_t nbytes, int32_t device) const {
  uint64_t handle = 0;
  tenon_status status{};
  const auto code = table_.allocate(table_.context, device, nbytes, &handle, &status);
  if (code == TENON_OUT_OF_MEMORY)
    return 0;
  check(code, status, name_);
  return static_cast<uintptr_t>(handle);
}

void TargetLibrary::release(uintptr_t handle, int32_t device) const {
  if (is_here())
    table_.release(table_.context, device, handle);
}

void TargetLibrary::let_go(RecordedLaunches& recording) const {
  if (is_here())
    table_.free_recording(table_.context, recording.device, recording.number);
  recording.number = 0;
}

std::unique_ptr<Queue> TargetLibrary::queue(int32_t device, PlaceOf place_of) {
  const auto make = [&](int32_t number) {
    return std::make_unique<LibraryQueue>(shared_from_this(), device, number, place_of);
  };
  if (copy_queues() <= 0)
    return make(0);
  std::vector<std::unique_ptr<Queue>> copies;
  for (int32_t number = 1; number <= copy_queues(); ++number)
    copies.push_back(make(number));
  return several_queues(make(0), std::move(copies));
}

TargetLibrary::Kernel::~Kernel() {
  library_->unload(number_);
}

// By the lock.
void TargetLibrary::unload_passed() {
  std::erase_if(leaving_, [&](const Leaving& one) {
    for (const auto& ticket : one.after) {
      if (!ticket->passed())
        return false;
    }
    table_.unload(table_.context, one.kernel);
    return true;
  });
}

// Once all that may use it has run: what is enqueued is committed for that.
void TargetLibrary::unload(uint64_t kernel) {
  if (table_.unload == nullptr || !is_here())
    return;
  Leaving leaving{kernel, {}};
  for (int32_t device = 0; device < table_.devices; ++device) {
    auto& [turns, last] = devices_[device];
    const std::lock_guard<std::mutex> lock(turns->mutex);
    const auto& line = turns->lines[0];
    tenon_status status{};
    if (line.open_by != nullptr && line.commit_open(line.open_by, &status) != TENON_OK)
      return;  // it stays
    if (last != nullptr)
      leaving.after.push_back(last);
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  leaving_.push_back(std::move(leaving));
  unload_passed();
}

std::shared_ptr<TargetLibrary::Kernel> TargetLibrary::load(
    std::string_view code, const std::string& entry) {
  if (table_.load == nullptr)
    fail(ErrorKind::unsupported, name_, " loads no kernels: its library has no 'load'");
  const std::lock_guard<std::mutex> lock(mutex_);
  if (table_.unload != nullptr)
    unload_passed();
  auto& known = loaded_[{checksum(code), entry}];
  if (auto kernel = known.lock())
    return kernel;
  std::erase_if(
      loaded_, [&](const auto& one) { return one.second.expired() && &one.second != &known; });
  uint64_t number = 0;
  tenon_status status{};
  check(
      table_.load(table_.context, code.data(), code.size(), entry.c_str(), &number, &status),
      status,
      name_);
  auto kernel = std::make_shared<Kernel>(shared_from_this(), number);
  known = kernel;
  return kernel;
}

}  // namespace tenon

const tenon::SharedTarget* tenon_share_target(
    const char* path, uint32_t layout, tenon_status* status) {
  using namespace tenon;
  static auto& mutex = *new std::mutex;  // not of forks: a child opens no device
  static const SharedTarget* opened = nullptr;
  const SharedTarget* found = nullptr;
  told(status, [&] {
    if (layout != kTurnsLayout)
      fail(ErrorKind::unsupported, "another version of libtenon_rt is in this process");
    const std::lock_guard<std::mutex> lock(mutex);
    void* library = handle_of(path);
    for (found = opened; found != nullptr && found->library != library;)
      found = found->next;
    if (found == nullptr)
      found = opened = first_opened(library, path, opened);
  });
  return found;
}
