// torch.profiler: PyTorch forwards the profiler of a device of its slot for others'
// (`ProfilerActivity.PrivateUse1`), which hands its log over as Kineto's events.

#define FMT_HEADER_ONLY  // no library of PyTorch exports it
#define USE_KINETO
#define KINETO_NAMESPACE libkineto
#include <IActivityProfiler.h>
#include <libkineto.h>
#include <torch/csrc/profiler/standalone/privateuse1_profiler.h>

#include <algorithm>
#include <mutex>

#include "device/profile.h"
#include "device/target.h"
#include "execute/ceilings.h"
#include "execute/kineto_events.h"

namespace tenon {
namespace {

using libkineto::ActivityType;

constexpr size_t kMostEvents = size_t{1} << 22;

libkineto::DeviceInfo info_of(int32_t device) {
  const auto name = c10::str("tenon:", device);
  return {device, libkineto::kExceedMaxPid + device, name, name};
}

class Session final : public libkineto::IActivityProfilerSession {
 public:
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
    if (!log_)
      return;
    auto events = log_->take(/*all=*/true);
    const bool copies_beside = std::any_of(
        events.begin(), events.end(), [](const ProfileEvent& event) { return event.queue > 0; });
    log_events(logger, linked, start, std::move(events), outer());
    for (int32_t device = 0; device < device_count(); ++device) {
      if (device > 0)
        logger.handleDeviceInfo(info_of(device), start);
      logger.handleResourceInfo({kQueue, 0, device, "queue 0"}, start);
      if (copies_beside)
        logger.handleResourceInfo({kCopies, 1, device, "copies beside kernels"}, start);
    }
    const auto pid = libkineto::processId();
    for (const auto& [track, name] :
         {std::pair{kCommits, "tenon: commits"},
          std::pair{kLookUps, "tenon: plan look-ups"},
          std::pair{kReferenceRuns, "tenon: windows by reference"},
          std::pair{kBuilder, "tenon: builder"}})
      logger.handleResourceInfo({track, track, pid, name}, start);
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
  OuterRanges outer() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return outer_;
  }

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
    measure_ceilings();
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

}  // namespace
}  // namespace tenon
