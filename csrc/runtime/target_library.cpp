#include "runtime/target_library.h"

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "runtime/archive.h"
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

// `before`: what was committed of the same queue's work, and nobody has asked for yet.
class LibraryCommit final : public Commit {
 public:
  LibraryCommit(
      std::shared_ptr<const TargetLibrary> library,
      const tenon_target_functions& table,
      int32_t device,
      uint64_t ticket,
      std::shared_ptr<LibraryCommit> before)
      : library_(std::move(library)),
        table_(table),
        device_(device),
        ticket_(ticket),
        before_(std::move(before)) {}
  ~LibraryCommit() override {
    if (table_.forget != nullptr)
      table_.forget(table_.context, device_, ticket_);
  }
  uint64_t ticket() const {
    return ticket_;
  }
  bool passed() override {
    if (!over_ && table_.passed(table_.context, device_, ticket_) != 0)
      note_end();
    return over_;
  }
  void wait() override {
    if (over_)
      return;
    if (before_ != nullptr)
      before_->wait();
    tenon_status status{};
    table_.wait(table_.context, device_, ticket_, &status);  // `failure` asks what came of it
    note_end();
  }
  double seconds() override {
    return table_.seconds != nullptr ? table_.seconds(table_.context, device_, ticket_)
                                     : seconds_.load();
  }
  std::optional<double> started() override {
    if (before_ != nullptr)
      return before_->started();
    const auto found =
        table_.started != nullptr ? table_.started(table_.context, device_, ticket_) : 0;
    return found > 0 ? std::optional(found) : std::nullopt;
  }
  std::shared_ptr<Failure> failure() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!asked_ && before_ != nullptr)
      failure_ = before_->failure();
    if (!asked_ && failure_ == nullptr) {
      tenon_status status{};
      const auto code = table_.wait(table_.context, device_, ticket_, &status);
      if (code != TENON_OK) {
        status.code = code;
        failure_ = Failure::of(error_of(status, library_->name()));
      }
    }
    asked_ = true;
    return failure_;
  }

 private:
  void note_end() {
    double none = 0;
    seconds_.compare_exchange_strong(none, host_seconds());
    over_ = true;
  }

  const std::shared_ptr<const TargetLibrary> library_;
  const tenon_target_functions& table_;
  const int32_t device_;
  const uint64_t ticket_;
  const std::shared_ptr<LibraryCommit> before_;  // the queue is in order: it passes first
  std::atomic<bool> over_{false};
  std::atomic<double> seconds_{0};
  std::mutex mutex_;  // of what follows; not of forks: a child has no device
  bool asked_ = false;
  std::shared_ptr<Failure> failure_;
};

// `number`: 0 is the queue of kernels, the others are for copies. Others may have queues of the
// same device: what one of them has enqueued is committed before another enqueues, so a ticket
// tells of the work of one alone.
class LibraryQueue final : public Queue {
 public:
  LibraryQueue(
      std::shared_ptr<const TargetLibrary> library,
      int32_t device,
      int32_t number,
      TargetLibrary::PlaceOf place_of)
      : library_(std::move(library)),
        table_(library_->table_),
        device_(device),
        number_(number),
        place_of_(std::move(place_of)),
        shared_(*library_->shared_.at(static_cast<size_t>(device))),
        line_(shared_.lines.at(static_cast<size_t>(number))) {}
  ~LibraryQueue() override {
    const std::lock_guard<std::mutex> lock(shared_.mutex);
    if (line_.open_by == this)
      line_.open_by = nullptr;
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
    const auto number = static_cast<LibraryCommit&>(*ticket).ticket();
    tenon_status status{};
    const auto lock = turn();
    check(table_.after(table_.context, device_, number_, number, &status), status, name());
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
    std::unique_lock<std::mutex> lock(shared_.mutex);
    if (line_.open_by != nullptr && line_.open_by != this)
      line_.open_by->commit_open();
    line_.open_by = this;
    return lock;
  }

  // Under the lock. Where nothing was enqueued the library gives the last ticket once more.
  void commit_open() {
    uint64_t ticket = 0;
    tenon_status status{};
    const auto code = number_ == 0
                          ? table_.commit(table_.context, device_, &ticket, &status)
                          : table_.commit_on(table_.context, device_, number_, &ticket, &status);
    check(code, status, name());
    line_.open_by = nullptr;
    if (line_.last != nullptr && line_.last->ticket() == ticket)
      return;
    part_ = std::make_shared<LibraryCommit>(library_, table_, device_, ticket, std::move(part_));
    line_.last = part_;
  }

  Ticket start() override {
    const std::lock_guard<std::mutex> lock(shared_.mutex);
    auto* const open = line_.open_by != nullptr ? line_.open_by : this;
    if (open == this || (part_ == nullptr && last_ == nullptr))
      open->commit_open();
    if (part_ != nullptr)
      last_ = std::move(part_);
    return last_ != nullptr ? last_ : line_.last;
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

  const std::shared_ptr<const TargetLibrary> library_;
  const tenon_target_functions& table_;
  const int32_t device_, number_;
  const TargetLibrary::PlaceOf place_of_;
  TargetLibrary::Device& shared_;
  TargetLibrary::Device::Line& line_;
  std::shared_ptr<LibraryCommit> part_;  // of its work, since it was last asked to commit
  std::shared_ptr<LibraryCommit> last_;
};

TargetLibrary::TargetLibrary(tenon_target_functions table) : table_(table), name_(table.name) {
  const auto lines = 1 + static_cast<size_t>(std::max(table_.copy_queues, 0));
  for (int32_t device = 0; device < table_.devices; ++device)
    shared_.emplace_back(std::make_unique<Device>())->lines.resize(lines);
}

std::shared_ptr<TargetLibrary> TargetLibrary::open(const std::string& path) {
  // Not of forks: a child opens no device. Leaked on purpose, as libraries stay open.
  static auto& mutex = *new std::mutex;
  static auto& opened = *new std::vector<std::pair<void*, std::shared_ptr<TargetLibrary>>>;
  const std::lock_guard<std::mutex> lock(mutex);
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    fail(ErrorKind::error, "the library of a target does not open: ", dlerror());
  for (const auto& [handle, known] : opened) {
    if (handle == library)
      return known;
  }
  const auto get = reinterpret_cast<tenon_target_function>(dlsym(library, kFunction));
  if (get == nullptr)
    fail(
        ErrorKind::error,
        path,
        " is no library of a target: it does not export '",
        kFunction,
        "' (see include/tenon.h)");
  tenon_status status{};
  const auto* table = get(TENON_INTERFACE, &status);
  if (table == nullptr) {
    if (status.code == TENON_OK)
      status.code = TENON_ERROR;
    const auto reason = error_of(status, path);
    throw Error(
        reason.kind,
        text_of(reason.what(), " (it was asked for version ", TENON_INTERFACE, " of tenon.h)"));
  }
  const std::shared_ptr<TargetLibrary> made(new TargetLibrary(table_of(*table, path)));
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
  table_.release(table_.context, device, handle);
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
  if (library_->table_.unload != nullptr)
    library_->table_.unload(library_->table_.context, number_);
}

std::shared_ptr<TargetLibrary::Kernel> TargetLibrary::load(
    std::string_view code, const std::string& entry) {
  if (table_.load == nullptr)
    fail(ErrorKind::unsupported, name_, " loads no kernels: its library has no 'load'");
  const std::lock_guard<std::mutex> lock(mutex_);
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
