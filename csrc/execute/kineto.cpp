// torch.profiler: the log of what the device did, as Kineto's events. PyTorch forwards the profiler
// of a device of its slot for others' (`ProfilerActivity.PrivateUse1`).
//
// A call is an event within its op, on the thread that recorded it, and each kernel that computes
// it has an arrow from there. Kineto writes one arrow's end for an event, so what a kernel computes
// beside its main op are events without length at its start.

#define FMT_HEADER_ONLY  // no library of PyTorch exports it
#define USE_KINETO
#define KINETO_NAMESPACE libkineto
#include <GenericTraceActivity.h>
#include <IActivityProfiler.h>
#include <libkineto.h>
#include <output_base.h>
#include <torch/csrc/profiler/standalone/privateuse1_profiler.h>

#include <algorithm>
#include <map>
#include <unordered_map>

#include "device/profile.h"
#include "device/target.h"
#include "execute/ceilings.h"

namespace tenon {
namespace {

using libkineto::ActivityType;
using libkineto::GenericTraceActivity;
using libkineto::ITraceActivity;

constexpr size_t kMostEvents = size_t{1} << 22;

// Tracks beside the threads' own, whose numbers are no thread's; and on a device that of its queue,
// and those of ranges by depth.
constexpr int32_t kCommits = 1 << 29, kLookUps = kCommits + 1, kReferenceRuns = kCommits + 2,
                  kBuilder = kCommits + 3;
constexpr int32_t kQueue = 0, kRanges = 1;

const libkineto::TraceSpan& span() {
  static const auto* instance = new libkineto::TraceSpan(0, 0, "tenon");
  return *instance;
}

std::string in_json(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c == '\\'; }, ' ');
  std::replace(text.begin(), text.end(), '"', '\'');
  return text;
}

const char* kind_of(Activity activity) {
  switch (activity) {
    case Activity::kernel:
      return "generated kernel";
    case Activity::library:
      return "library call";
    case Activity::fallback:
      return "fallback";
    case Activity::reference:
      return "reference execution";
    default:
      return "at once";
  }
}

// Turns the events of a session into Kineto's.
class Translation {
 public:
  Translation(
      libkineto::ActivityLogger& logger,
      const libkineto::getLinkedActivityCallback& linked,
      std::deque<ProfileEvent> events)
      : logger_(logger), linked_(linked), events_(std::move(events)), subjects_(subjects_from(1)) {}

  void run() {
    for (const auto& event : events_) {
      if (event.activity == Activity::record)
        records_[{event.window, event.call}] = &event;
    }
    for (const auto& event : events_) {
      switch (event.activity) {
        case Activity::record:
          break;
        case Activity::commit:
          on_host(event, "commit: " + subject(event).name, kCommits);
          break;
        case Activity::look_up:
          on_host(event, "plan look-up", kLookUps);
          break;
        case Activity::reference_run:
          on_host(event, "window by reference", kReferenceRuns);
          break;
        case Activity::build:
          on_host(event, "builder: a plan", kBuilder);
          break;
        case Activity::wait:
          on_host(event, "wait: " + subject(event).name, event.thread);
          break;
        default:
          on_device(event);
      }
    }
    for (const auto& [place, event] : records_)
      record(*event, next_flow(place));
    for (const auto& [place, found] : ranges_)
      log_ranges(place.first, found);
  }

 private:
  using Place = std::pair<uint32_t, int32_t>;  // of a call: its window, and which one there

  const Subject& subject(const ProfileEvent& event) const {
    static const Subject nothing;
    return event.subject > 0 && event.subject <= subjects_.size() ? subjects_[event.subject - 1]
                                                                  : nothing;
  }

  const ITraceActivity* op_of(const ProfileEvent& event) const {
    return event.correlation != 0 ? linked_(static_cast<int32_t>(event.correlation)) : nullptr;
  }

  GenericTraceActivity made(const ProfileEvent& event, ActivityType type, const std::string& name) {
    GenericTraceActivity made(span(), type, name);
    made.startTime = event.begin;
    made.endTime = event.end;
    made.threadId = event.thread;
    if (event.line > 0 && event.line <= subjects_.size())
      made.addMetadataQuoted("line", in_json(subjects_[event.line - 1].name));
    if (event.window > 0)
      made.addMetadata("window", event.window);
    return made;
  }

  void place_on_host(GenericTraceActivity& made, int32_t track) {
    made.device = libkineto::processId();
    made.resource = track;
  }

  void on_host(const ProfileEvent& event, const std::string& name, int32_t track) {
    auto activity = made(event, ActivityType::PRIVATEUSE1_RUNTIME, name);
    place_on_host(activity, track);
    activity.linked = op_of(event);
    if (event.amount > 0)
      activity.addMetadata("calls", event.amount);
    activity.log(logger_);
  }

  // A recorded call, within its op: the clock that PyTorch reads is another one. `flow`: of the
  // arrow that starts there; 0: none.
  void record(const ProfileEvent& event, uint32_t flow, const char* name = "tenon::record") {
    auto activity = made(event, ActivityType::PRIVATEUSE1_RUNTIME, name);
    place_on_host(activity, event.thread);
    activity.linked = op_of(event);
    if (const auto* op = activity.linked) {
      const auto end = op->timestamp() + op->duration();
      activity.startTime = std::clamp(activity.startTime, op->timestamp(), end);
      activity.endTime = std::clamp(activity.endTime, activity.startTime, end);
    }
    activity.addMetadataQuoted("op", in_json(subject(event).name));
    if (flow > 0)
      put_flow(activity, flow, /*start=*/true);
    activity.log(logger_);
  }

  // One end of an arrow.
  void put_flow(GenericTraceActivity& activity, uint32_t flow, bool start) {
    activity.flow.id = flow;
    activity.flow.type = libkineto::kLinkAsyncCpuGpu;
    activity.flow.start = start ? 1 : 0;
    activity.addMetadata("correlation", flow);
  }

  // The arrow that a call's own event starts.
  uint32_t next_flow(Place place) const {
    const auto found = flows_.find(place);
    return found != flows_.end() ? found->second : 0;
  }

  // An arrow from a call. The first one starts at its event, others at events without length.
  uint32_t flow_from(Place place) {
    auto& first = flows_[place];
    if (first == 0)
      return first = ++last_flow_;
    auto again = *records_.at(place);
    again.begin = again.end = std::min(again.begin + 1, again.end);
    record(again, ++last_flow_, "tenon::record, again");
    return last_flow_;
  }

  std::vector<Place> calls_of(const ProfileEvent& event) const {
    std::vector<Place> found;
    const auto add = [&](int32_t call) {
      if (event.window > 0 && records_.count({event.window, call}) > 0)
        found.emplace_back(event.window, call);
    };
    add(event.call);
    if (event.call < 0)
      std::for_each(subject(event).calls.begin(), subject(event).calls.end(), add);
    return found;
  }

  void on_device(const ProfileEvent& event) {
    const auto& what = subject(event);
    const bool copies = event.activity == Activity::copy;
    auto activity =
        made(event, copies ? ActivityType::GPU_MEMCPY : ActivityType::CONCURRENT_KERNEL, what.name);
    activity.device = std::max<int32_t>(event.device, 0);
    activity.resource = kQueue;
    activity.addMetadata("device", activity.device);
    activity.addMetadata("stream", activity.resource);
    describe(activity, event, what);
    const auto calls = calls_of(event);
    if (calls.empty()) {
      // Nobody recorded it: it is of the op that ran it.
      auto launch = event;
      launch.end = launch.begin;
      record(launch, ++last_flow_, "tenon::launch");
      put_flow(activity, last_flow_, /*start=*/false);
      activity.linked = op_of(event);
    } else {
      put_flow(activity, flow_from(calls.front()), /*start=*/false);
      activity.linked = op_of(*records_.at(calls.front()));
    }
    activity.log(logger_);
    for (size_t k = 1; k < calls.size(); ++k)
      part(activity, *records_.at(calls[k]), flow_from(calls[k]), k);
    note_ranges(event, calls);
  }

  // What a kernel computes beside its main op.
  void part(
      const GenericTraceActivity& kernel, const ProfileEvent& recorded, uint32_t flow, size_t k) {
    GenericTraceActivity activity(span(), ActivityType::PRIVATEUSE1_RUNTIME, "tenon::part");
    const auto at = kernel.startTime + static_cast<int64_t>(k);
    activity.startTime = activity.endTime = std::min(at, kernel.endTime);
    activity.device = kernel.device;
    activity.resource = kernel.resource;
    activity.linked = op_of(recorded);
    activity.addMetadataQuoted("op", in_json(subject(recorded).name));
    put_flow(activity, flow, /*start=*/false);
    activity.log(logger_);
  }

  void describe(GenericTraceActivity& activity, const ProfileEvent& event, const Subject& what) {
    const auto bytes = event.amount > 0 ? event.amount : what.bytes;
    const auto seconds = 1e-9 * static_cast<double>(std::max<int64_t>(event.end - event.begin, 1));
    activity.addMetadata("bytes", bytes);
    activity.addMetadata("memory bandwidth (GB/s)", 1e-9 * static_cast<double>(bytes) / seconds);
    if (event.activity == Activity::copy)
      return;
    activity.addMetadataQuoted("kind", kind_of(event.activity));
    activity.addMetadataQuoted("tensors", in_json(what.detail));
    if (what.operations > 0)
      activity.addMetadata("operations", what.operations);
    const auto& most = ceilings();
    const auto share = [&](double amount, double a_second) {
      return a_second > 0 ? 100 * amount / seconds / a_second : 0;
    };
    if (most.bytes > 0)
      activity.addMetadata(
          "% of peak",
          std::max(
              share(static_cast<double>(bytes), most.bytes),
              share(static_cast<double>(what.operations), most.operations)));
  }

  // Ranges of `record_function`, as far as the device worked for them.
  struct Extent {
    int64_t begin = INT64_MAX, end = 0;
  };

  void note_ranges(const ProfileEvent& event, const std::vector<Place>& calls) {
    const auto note = [&](uint64_t range) {
      if (range == 0)
        return;
      auto& extent = ranges_[{std::max<int32_t>(event.device, 0), 0}][range];
      extent.begin = std::min(extent.begin, event.begin);
      extent.end = std::max(extent.end, event.end);
    };
    for (const auto& place : calls)
      note(records_.at(place)->range);
    if (calls.empty())
      note(event.range);
  }

  // One after the other, as a track has to be: what a kernel computed for two is the first one's.
  void log_ranges(int32_t device, const std::map<uint64_t, Extent>& found) {
    std::vector<std::pair<Extent, uint64_t>> all;
    for (const auto& [range, extent] : found)
      all.emplace_back(extent, range);
    std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) {
      return a.first.begin < b.first.begin;
    });
    int64_t last = 0;
    for (const auto& [extent, range] : all) {
      const auto* op = linked_(static_cast<int32_t>(range));
      const auto begin = std::max(extent.begin, last);
      if (op == nullptr || begin >= extent.end)
        continue;
      GenericTraceActivity activity(span(), ActivityType::GPU_USER_ANNOTATION, op->name());
      activity.startTime = begin;
      activity.endTime = last = extent.end;
      activity.device = device;
      activity.resource = kRanges;
      activity.id = static_cast<int32_t>(range);
      activity.log(logger_);
    }
  }

  libkineto::ActivityLogger& logger_;
  const libkineto::getLinkedActivityCallback& linked_;
  const std::deque<ProfileEvent> events_;
  const std::vector<Subject> subjects_;
  std::map<Place, const ProfileEvent*> records_;
  std::map<Place, uint32_t> flows_;
  std::map<std::pair<int32_t, int>, std::map<uint64_t, Extent>> ranges_;
  uint32_t last_flow_ = 0;
};

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
    Translation(logger, linked, log_->take(/*all=*/true)).run();
    for (int32_t device = 0; device < device_count(); ++device) {
      if (device > 0)
        logger.handleDeviceInfo(info_of(device), start);
      logger.handleResourceInfo({kQueue, 0, device, "queue 0"}, start);
      logger.handleResourceInfo({kRanges, 1, device, "record_function"}, start);
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
    at_hand().ranges.push_back(id);
  }
  void popUserCorrelationId() override {
    if (!at_hand().ranges.empty())
      at_hand().ranges.pop_back();
  }

 private:
  std::optional<ProfileLog> log_;
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

const torch::profiler::impl::RegisterPrivateUse1Profiler<Profiler> registered;

}  // namespace
}  // namespace tenon
