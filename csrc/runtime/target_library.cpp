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
#include "runtime/library_queue.h"
#include "runtime/several_queues.h"

namespace tenon {
namespace {

constexpr const char* kFunction = "tenon_target";

// What the library's table has; what is beyond its size is zero.
tenon_target_functions table_of(const tenon_target_functions& given, const std::string& path) {
  tenon_target_functions table{};
  constexpr auto kLeast = offsetof(tenon_target_functions, total_memory);
  if (given.size < kLeast || given.size > size_t{1} << 16)
    fail(
        ErrorKind::error,
        "{}: its table says that it has {} bytes, and a tenon_target_functions has {}",
        path,
        given.size,
        sizeof(table));
  std::memcpy(&table, &given, std::min(given.size, sizeof(table)));
  const auto lacks = [&](bool is_there, const char* field) {
    if (!is_there)
      fail(ErrorKind::error, "{}: its table lacks '{}', which a target has to have", path, field);
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

void check_status(int32_t code, tenon_status& status, const std::string& name) {
  if (code == TENON_OK)
    return;
  status.code = code;
  throw error_of(status, name);
}

Error error_of(const tenon_status& status, const std::string& name) {
  const bool known = status.code >= TENON_ERROR && status.code <= TENON_OUT_OF_RANGE;
  const auto length = strnlen(status.text, sizeof(status.text));
  const std::string text(status.text, length);
  return {
      known ? static_cast<ErrorKind>(status.code) : ErrorKind::error,
      text_of(
          "{}: {}", name, text.empty() ? text_of("it failed with code {}", status.code) : text)};
}

// Libraries stay open.
RecordedLaunches::~RecordedLaunches() {
  if (is_there())
    library->let_go(*this);
}

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
        "this process was forked from one that opened {}, which stayed there: start it anew (by "
        "spawn), or open it in the child alone",
        name_);
}

namespace {

// Opens a library of a target, or finds the one that is open.
void* handle_of(const char* path) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    fail(ErrorKind::error, "the library of a target does not open: {}", dlerror());
  return library;
}

const SharedTarget* first_opened(void* library, const std::string& path, const SharedTarget* next) {
  const auto get = reinterpret_cast<tenon_target_function>(dlsym(library, kFunction));
  if (get == nullptr)
    fail(
        ErrorKind::error,
        "{} is no library of a target: it does not export '{}' (see include/tenon.h)",
        path,
        kFunction);
  tenon_status status{};
  const auto* functions = get(TENON_INTERFACE, &status);
  if (functions == nullptr) {
    if (status.code == TENON_OK)
      status.code = TENON_ERROR;
    const auto reason = error_of(status, path);
    throw Error(
        reason.kind,
        text_of("{} (it was asked for version {} of tenon.h)", reason.what(), TENON_INTERFACE));
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
  static auto& opened = *new std::shared_ptr<TargetLibrary>;
  const std::lock_guard<std::mutex> lock(mutex);
  void* library = handle_of(path.c_str());
  for (const auto* one = &opened; *one != nullptr; one = &(*one)->next_) {
    if ((*one)->handle_ == library)
      return *one;
  }
  tenon_status status{};
  const auto* shared = sharing_copy()(path.c_str(), kTurnsLayout, &status);
  if (shared == nullptr)
    throw Error(static_cast<ErrorKind>(status.code), status.text);
  const std::shared_ptr<TargetLibrary> made(
      new TargetLibrary(table_of(*shared->functions, path), *shared));
  made->handle_ = library;
  made->next_ = std::exchange(opened, made);
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
        "{} has {} devices, counted from 0, and no device {}",
        library->name(),
        library->devices(),
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
  check_status(code, status, name_);
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
    return library_queue(shared_from_this(), device, number, place_of);
  };
  if (copy_queues() <= 0)
    return make(0);
  std::vector<std::unique_ptr<Queue>> copies(static_cast<size_t>(copy_queues()));
  for (size_t k = 0; k < copies.size(); ++k)
    copies[k] = make(static_cast<int32_t>(k) + 1);
  return several_queues(make(0), std::move(copies));
}

TargetLibrary::Kernel::~Kernel() {
  library_->unload(number_);
}

// By the lock.
void TargetLibrary::unload_passed() {
  const auto has_passed = [](const auto& ticket) { return ticket->passed(); };
  for (size_t k = leaving_.size(); k-- > 0;) {
    if (!std::ranges::all_of(leaving_[k].after, has_passed))
      continue;
    table_.unload(table_.context, leaving_[k].kernel);
    leaving_[k] = std::move(leaving_.back());
    leaving_.pop_back();
  }
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
    fail(ErrorKind::unsupported, "{} loads no kernels: its library has no 'load'", name_);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (table_.unload != nullptr)
    unload_passed();
  const auto sum = checksum(code);
  size_t kept = 0;
  for (auto& one : loaded_) {
    if (one.checksum == sum && one.entry == entry) {
      if (auto kernel = one.kernel.lock())
        return kernel;
    } else if (!one.kernel.expired()) {  // who has one may be its last owner, and needs the lock
      std::swap(loaded_[kept++], one);
    }
  }
  loaded_.erase(loaded_.begin() + static_cast<ptrdiff_t>(kept), loaded_.end());
  uint64_t number = 0;
  tenon_status status{};
  check_status(
      table_.load(table_.context, code.data(), code.size(), entry.c_str(), &number, &status),
      status,
      name_);
  auto kernel = shared<Kernel>(shared_from_this(), number);
  loaded_.push_back({sum, entry, kernel});
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
