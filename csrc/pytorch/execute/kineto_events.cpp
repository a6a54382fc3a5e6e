// A call is an event within its op, on the thread that recorded it, and each kernel that computes
// it has an arrow from there. Kineto writes one arrow's end for an event, so what a kernel computes
// beside its main op are events without length at its start.

#define FMT_HEADER_ONLY  // no library of PyTorch exports it
#define USE_KINETO
#define KINETO_NAMESPACE libkineto
#include "execute/kineto_events.h"

#include <GenericTraceActivity.h>
#include <libkineto.h>

#include <algorithm>
#include <map>

#include "device/target.h"
#include "execute/ceilings.h"

namespace tenon {
namespace {

using libkineto::ActivityType;
using libkineto::GenericTraceActivity;
using libkineto::ITraceActivity;

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
      int64_t start,
      std::deque<ProfileEvent> events,
      const OuterRanges& outer)
      : logger_(logger),
        linked_(linked),
        start_(start),
        events_(std::move(events)),
        subjects_(subjects_from(1)),
        ranges_(outer) {}

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
    for (int32_t device = 0; device < device_count(); ++device)
      log_ranges(device);
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
    activity.resource = event.queue == 0 ? kQueue : kCopies;
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

  void note_ranges(const ProfileEvent& event, const std::vector<Place>& calls) {
    const auto device = std::max<int32_t>(event.device, 0);
    for (const auto& place : calls)
      ranges_.note(device, records_.at(place)->range, event.begin, event.end);
    if (calls.empty())
      ranges_.note(device, event.range, event.begin, event.end);
  }

  void log_ranges(int32_t device) {
    int32_t tracks = 0;
    for (const auto& placed : ranges_.place(device)) {
      const auto* op = linked_(static_cast<int32_t>(placed.range));
      if (op == nullptr)
        continue;
      GenericTraceActivity activity(span(), ActivityType::GPU_USER_ANNOTATION, op->name());
      activity.startTime = placed.begin;
      activity.endTime = placed.end;
      activity.device = device;
      activity.resource = kRanges + placed.track;
      activity.id = static_cast<int32_t>(placed.range);
      activity.log(logger_);
      tracks = std::max(tracks, placed.track + 1);
    }
    for (int32_t k = 0; k < tracks; ++k) {
      const auto name = k == 0 ? "record_function" : c10::str("record_function ", k + 1);
      logger_.handleResourceInfo({kRanges + k, kRanges + k, device, name}, start_);
    }
  }

  libkineto::ActivityLogger& logger_;
  const libkineto::getLinkedActivityCallback& linked_;
  const int64_t start_;
  const std::deque<ProfileEvent> events_;
  const std::vector<Subject> subjects_;
  std::map<Place, const ProfileEvent*> records_;
  std::map<Place, uint32_t> flows_;
  DeviceRanges ranges_;
  uint32_t last_flow_ = 0;
};

}  // namespace

void log_events(
    libkineto::ActivityLogger& logger,
    const libkineto::getLinkedActivityCallback& linked,
    int64_t start,
    std::deque<ProfileEvent> events,
    const OuterRanges& outer) {
  Translation(logger, linked, start, std::move(events), outer).run();
}

}  // namespace tenon
