// torch.profiler. PyTorch has a slot for the profiler of a device that it does not know
// (`ProfilerActivity.PrivateUse1`). Python makes rows of our log
// (torch_tenon/reports/profiler/kineto.py), and these become Kineto's activities here.

#define FMT_HEADER_ONLY  // no library of PyTorch exports it
#define USE_KINETO
#define KINETO_NAMESPACE libkineto
#include <GenericTraceActivity.h>
#include <IActivityProfiler.h>
#include <libkineto.h>
#include <output_base.h>
#include <pybind11/stl.h>
#include <torch/csrc/profiler/standalone/privateuse1_profiler.h>

#include <algorithm>
#include <mutex>

#include "device/interrupts.h"
#include "device/profile.h"
#include "device/target.h"
#include "python/registration.h"

namespace tenon {
namespace {

namespace py = pybind11;
using libkineto::ActivityType;
using libkineto::GenericTraceActivity;

constexpr size_t kMostEvents = size_t{1} << 22;

// As kineto.py has them, number by number.
using Fact = std::tuple<std::string, std::string, bool>;
using Row = std::tuple<
    int,
    std::string,
    int64_t,
    int64_t,
    int32_t,
    int32_t,
    int32_t,
    uint64_t,
    uint32_t,
    bool,
    std::vector<Fact>>;
using Track = std::tuple<int64_t, int64_t, int64_t, std::string>;
constexpr int kCall = 1, kRange = 4;
constexpr ActivityType kTypes[] = {
    ActivityType::PRIVATEUSE1_RUNTIME,
    ActivityType::PRIVATEUSE1_RUNTIME,
    ActivityType::CONCURRENT_KERNEL,
    ActivityType::GPU_MEMCPY,
    ActivityType::GPU_USER_ANNOTATION};

// Python's: gives what makes the trace of a session that begins. Leaked on purpose, as what it
// gave is: sessions may end while the process exits.
py::function* g_begin = nullptr;

// Runs Python, and tells what it raises: a profiler has nobody to raise it to.
template <class F>
void with_python(F&& run) {
  const DeferredInterrupts until_it_has_run;  // it would be lost below
  const py::gil_scoped_acquire gil;
  try {
    run();
  } catch (py::error_already_set& error) {
    error.discard_as_unraisable("a profile of tenon");
  }
}

libkineto::DeviceInfo info_of(int32_t device) {
  const auto name = c10::str("tenon:", device);
  return {device, libkineto::kExceedMaxPid + device, name, name};
}

void log_row(
    libkineto::ActivityLogger& logger,
    const libkineto::getLinkedActivityCallback& linked,
    const Row& row) {
  static const auto* span = new libkineto::TraceSpan(0, 0, "tenon");
  const auto& [kind, name, begin, end, device, track, thread, op, flow, starts, facts] = row;
  const auto* found = op != 0 ? linked(static_cast<int32_t>(op)) : nullptr;
  if (kind == kRange && found == nullptr)
    return;
  GenericTraceActivity made(*span, kTypes[kind], kind == kRange ? found->name() : name);
  made.startTime = begin;
  made.endTime = end;
  made.device = device;
  made.resource = track;
  made.threadId = thread;
  if (kind == kRange)
    made.id = static_cast<int32_t>(op);
  else
    made.linked = found;
  if (kind == kCall && found != nullptr) {
    const auto last = found->timestamp() + found->duration();
    made.startTime = std::clamp(made.startTime, found->timestamp(), last);
    made.endTime = std::clamp(made.endTime, made.startTime, last);
  }
  if (flow > 0) {
    made.flow.id = flow;
    made.flow.type = libkineto::kLinkAsyncCpuGpu;
    made.flow.start = starts ? 1 : 0;
  }
  for (const auto& [key, value, is_text] : facts)
    is_text ? made.addMetadataQuoted(key, value) : made.addMetadata(key, value);
  made.log(logger);
}

class Session final : public libkineto::IActivityProfilerSession {
 public:
  Session() {
    with_python([this] {
      if (g_begin != nullptr)
        make_ = new py::object((*g_begin)());
    });
  }
  void start() override {
    at_hand() = {};
    log_.emplace(kMostEvents);
    status_ = libkineto::TraceStatus::RECORDING;
  }
  void stop() override {
    if (log_)
      log_->stop();
    status_ = libkineto::TraceStatus::PROCESSING;
  }
  std::vector<std::string> errors() override {
    const auto lost = log_ ? log_->lost() : 0;
    return lost > 0 ? std::vector{c10::str(lost, " events of tenon did not fit")}
                    : std::vector<std::string>();
  }
  void processTrace(libkineto::ActivityLogger& logger) override {
    processTrace(logger, [](int32_t) { return nullptr; }, 0, 0);
  }
  void processTrace(
      libkineto::ActivityLogger& logger,
      libkineto::getLinkedActivityCallback linked,
      int64_t start,
      int64_t) override {
    if (!log_ || make_ == nullptr)
      return;
    const auto events = log_->take(/*all=*/true);
    const auto ranges_around = outer();
    with_python([&] {
      const py::cpp_function take([&](const Row& row) { log_row(logger, linked, row); });
      for (const auto track : (*make_)(py::bytes(events), ranges_around, take)) {
        const auto [number, place, device, name] = track.cast<Track>();
        logger.handleResourceInfo({number, place, device, name}, start);
      }
    });
    for (int32_t device = 1; device < device_count(); ++device)
      logger.handleDeviceInfo(info_of(device), start);
  }
  // Of the first device; without it Kineto would name sixteen of its own.
  std::unique_ptr<libkineto::DeviceInfo> getDeviceInfo() override {
    return std::make_unique<libkineto::DeviceInfo>(info_of(0));
  }
  std::vector<libkineto::ResourceInfo> getResourceInfos() override {
    return {};
  }
  std::unique_ptr<libkineto::CpuTraceBuffer> getTraceBuffer() override {
    return nullptr;
  }
  void pushCorrelationId(uint64_t id) override {
    at_hand().ops.push_back(id);
  }
  void popCorrelationId() override {
    if (!at_hand().ops.empty())
      at_hand().ops.pop_back();
  }
  void pushUserCorrelationId(uint64_t id) override {
    auto& ranges = at_hand().ranges;
    if (!ranges.empty()) {
      const std::lock_guard<std::mutex> lock(mutex_);
      outer_[id] = ranges.back();
    }
    ranges.push_back(id);
  }
  void popUserCorrelationId() override {
    if (!at_hand().ranges.empty())
      at_hand().ranges.pop_back();
  }

 private:
  using OuterRanges = std::unordered_map<uint64_t, uint64_t>;  // the range around a range

  OuterRanges outer() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return outer_;
  }

  py::object* make_ = nullptr;
  std::optional<ProfileLog> log_;
  std::mutex mutex_;  // of what follows; not of forks: kineto's own locks are not either
  OuterRanges outer_;
};

class Profiler final : public libkineto::IActivityProfiler {
 public:
  const std::string& name() const override {
    static const std::string name = "tenon";
    return name;
  }
  const std::set<ActivityType>& availableActivities() const override {
    static const std::set<ActivityType> all{
        ActivityType::CONCURRENT_KERNEL,
        ActivityType::GPU_MEMCPY,
        ActivityType::GPU_USER_ANNOTATION,
        ActivityType::PRIVATEUSE1_RUNTIME};
    return all;
  }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(
      const std::set<ActivityType>& types, const libkineto::Config&) override {
    // Asked for by ProfilerActivity.PrivateUse1; the host's alone do without.
    if (types.count(ActivityType::CONCURRENT_KERNEL) == 0)
      return nullptr;
    return std::make_unique<Session>();
  }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(
      int64_t,
      int64_t,
      const std::set<ActivityType>& types,
      const libkineto::Config& config) override {
    return configure(types, config);
  }
};

const torch::profiler::impl::RegisterPrivateUse1Profiler<Profiler> registered_profiler;

const RegisterBindings kineto_bindings([](py::module_& m) {
  m.def(
      "set_begin_trace",
      [](py::function begin) { g_begin = new py::function(std::move(begin)); },
      "What is called as a session of torch.profiler begins, and gives what makes its trace.");
});

}  // namespace
}  // namespace tenon
