#include "record/graph.h"

#include <ATen/core/GraphImplInterface.h>

#include <array>
#include <atomic>
#include <fstream>
#include <optional>
#include <thread>
#include <unordered_map>
#include <utility>

#include "device/fork.h"
#include "device/generator.h"
#include "device/interpreter.h"
#include "device/target.h"
#include "record/direct.h"

namespace tenon {
namespace {

// A capture that is under way. The graph may go before the thread that captures it knows.
struct Capture {
  Capture(std::shared_ptr<Recorder> recorder, const RandomStream& first)
      : recorder(std::move(recorder)), random{first} {}

  const std::shared_ptr<Recorder> recorder;
  CapturedRandom random;  // the thread's
  std::atomic<bool> under_way{true};
};

struct CaptureOfThread {
  std::shared_ptr<Capture> capture;
  bool outside = false;
};
thread_local CaptureOfThread t_capture;

// By device: held for a whole replay, as the windows of two replays do not mix.
std::mutex& replay_mutex(c10::DeviceIndex device) {
  return OnlyOne<std::array<MutexAtFork<ForkOrder::replays>, kMostDevices>>::get()[device];
}

thread_local bool t_replays = false;

[[noreturn]] void refuse(std::string_view what) {
  TORCH_CHECK(
      false,
      what,
      " cannot be part of a graph: the graph is being captured, its calls run when it is replayed, "
      "and this would not. Do it before the capture or after it.");
}

// The captured calls that draw random numbers: where in the window's numbers seed and offset are.
constexpr std::string_view kDraws = "tenon::draw_";
constexpr size_t kNumbersOfStream = 2;

std::vector<size_t> draws_of(const Window& window) {
  std::vector<size_t> found;
  for (size_t k = 0; k < window.calls.size(); ++k) {
    if (window.calls[k].entry->op->name != kDraws)
      continue;
    const size_t end =
        k + 1 < window.calls.size() ? window.calls[k + 1].first_number : window.numbers.size();
    TORCH_INTERNAL_ASSERT(end >= window.calls[k].first_number + kNumbersOfStream);
    found.push_back(end - kNumbersOfStream);
  }
  return found;
}

std::vector<bool> results_of(const Window& window) {
  std::vector<bool> found(window.slots.size());
  for (const auto& call : window.calls) {
    const auto* slots = &window.slots_of_calls[call.first_slot] + call.entry->tensors.size();
    for (size_t k = 0; k < call.entry->fresh.size(); ++k)
      found[slots[k]] = true;
  }
  return found;
}

// Moves what a recorder has recorded to the graph's windows. Under `record_mutex`.
void move_open_window(Recorder& recorder) {
  auto& open = recorder.open;
  if (open.calls.empty())
    return;
  auto kept = std::make_unique<Window>();
  std::swap(*kept, open);
  open.recorder = &recorder;
  for (const auto& slot : kept->slots) {
    if (!slot.buffer)
      continue;
    for (auto& use : slot.buffer->uses) {
      if (use.window == &open)
        use.window = kept.get();
    }
  }
  recorder.captured->windows.push_back(std::move(kept));
}

// The capture is over. Says what each slot is in a replay, and which of the graph's random numbers
// each draw has. Under `record_mutex`.
void finish_windows(CapturedWindows& captured, const Capture& capture) {
  std::unordered_map<const Buffer*, int> windows_of;
  for (const auto& window : captured.windows) {
    window->close();
    for (const auto& slot : window->slots) {
      if (slot.buffer)
        ++windows_of[slot.buffer.get()];
    }
  }
  for (const auto& window : captured.windows) {
    const auto is_result = results_of(*window);
    for (size_t k = 0; k < window->slots.size(); ++k) {
      auto& slot = window->slots[k];
      if (!slot.buffer)
        continue;
      if (slot.is_temporary() && windows_of[slot.buffer.get()] == 1) {
        slot.buffer.reset();
        continue;
      }
      // Somebody may write memory without contents between two replays.
      slot.fresh = slot.fresh && is_result[k];
      slot.alive = true;
      ++slot.buffer->graphs;
    }
    window->held_bytes = 0;
    window->uses_shared = window->uses_failed = false;
    window->replayed = true;
    captured.draws.push_back(draws_of(*window));
    for (const auto at : captured.draws.back())
      window->numbers[at + 1] -= static_cast<int64_t>(capture.random.first.offset);
  }
  captured.drawn = capture.random.next.offset - capture.random.first.offset;
}

class Graph final : public at::GraphImplInterface {
 public:
  explicit Graph(const at::GraphImplArgs& args) : keeps_graph_(args.keep_graph) {
    static std::atomic<c10::CaptureId_t> last{0};
    pool_ = {++last, 0};
  }

  ~Graph() override {
    stop();
    reset();
  }

  void capture_begin(c10::MempoolId_t pool, at::GraphCaptureMode) override {
    {
      std::lock_guard<std::mutex> lock(record_mutex());
      check_unused();
    }
    TORCH_CHECK(!is_capturing(), "This thread captures another graph");
    check_is_in_no_run("captured");
    const auto device = current_device();
    const auto recorder = recorder_of(device).shared_from_this();
    submit(*recorder, CommitReason::request);
    const auto capture = std::make_shared<Capture>(recorder, current_stream_of(device));
    const auto captured = std::make_shared<CapturedWindows>();
    {
      std::lock_guard<std::mutex> lock(record_mutex());
      check_unused();  // by another thread, meanwhile
      // Each graph has memory of its own: that of a pool is never in the way of another graph's.
      if (pool.first != 0 || pool.second != 0)
        pool_ = pool;
      captured_ = recorder->captured = captured;
      capture_ = capture;
    }
    t_capture = {capture};
    forget_windows();  // the next calls are recorded
  }

  void capture_end() override {
    {
      std::lock_guard<std::mutex> lock(record_mutex());
      TORCH_CHECK(
          capture_ && t_capture.capture == capture_,
          "This thread does not capture this graph: `capture_begin` comes first");
    }
    stop();
    if (!keeps_graph_)
      instantiate();
  }

  // The plans come with the first replay, which waits for them.
  void instantiate() override {
    (void)captured();
  }

  void replay() override {
    const auto [windows, device] = captured();
    refuse_in_capture("a replay");
    check_is_in_no_run("replayed");
    TORCH_CHECK(!t_replays, "A graph is replayed within the replay of a graph, by the same thread");
    const WithoutInterpreter no_gil;
    const HeldWhileForking alone(replay_mutex(device));
    const Exchanged<bool> replays(t_replays, true);
    auto& recorder = recorder_of(device);
    submit(recorder, CommitReason::handover);
    const auto first = draw(std::nullopt, device, windows->drawn);
    for (size_t k = 0; k < windows->windows.size(); ++k) {
      const auto& window = *windows->windows[k];
      auto numbers = window.numbers;
      for (const auto at : windows->draws[k]) {
        numbers[at] = static_cast<int64_t>(first.seed);
        numbers[at + 1] += static_cast<int64_t>(first.offset);
      }
      while (const auto other = enter(recorder, window, numbers)) {
        submit(*other, CommitReason::handover);
        std::this_thread::yield();
      }
      submit(recorder, CommitReason::request);
    }
  }

  // A replay that is under way has the windows until it is over.
  void reset() override {
    std::shared_ptr<CapturedWindows> unused;  // ends after the lock
    std::lock_guard<std::mutex> lock(record_mutex());
    TORCH_CHECK(!capture_, "This graph is being captured");
    unused.swap(captured_);
  }

  c10::MempoolId_t pool() const override {
    return pool_;
  }

  void enable_debug_mode() override {
    debug_ = true;
  }

  void debug_dump(const std::string& path) override {
    TORCH_CHECK(debug_, "`enable_debug_mode` comes before `debug_dump`");
    const auto [windows, device] = captured();
    std::ofstream file(path);
    for (size_t k = 0; k < windows->windows.size(); ++k) {
      const auto& window = *windows->windows[k];
      file << "window " << k << ", " << window.calls.size() << " calls\n";
      for (size_t n = 0; n < window.calls.size(); ++n) {
        file << "  " << window.calls[n].entry->op->name;
        const auto& line = window.line_of(n);
        file << (line.empty() ? "" : "  ") << line << "\n";
      }
    }
    file.close();
    TORCH_CHECK(file, "the graph cannot be written to ", path);
  }

 private:
  // Under `record_mutex`.
  void check_unused() const {
    TORCH_CHECK(!capture_, "This graph is being captured already");
    TORCH_CHECK(captured_ == nullptr, "This graph has been captured: `reset` it first");
  }

  // A window that runs is closed, and what its kernels record is nobody's.
  static void check_is_in_no_run(const char* what) {
    TORCH_CHECK(
        !QueueLock::held(),
        "A graph cannot be ",
        what,
        " by an op's kernel on the host: the window that called the kernel is not over");
  }

  // The windows of what has been captured, and the device.
  std::pair<std::shared_ptr<const CapturedWindows>, c10::DeviceIndex> captured() const {
    std::lock_guard<std::mutex> lock(record_mutex());
    TORCH_CHECK(captured_ && !capture_, "This graph has not been captured");
    return {captured_, captured_->device};
  }

  // Ends the capture, where one is under way.
  void stop() {
    std::shared_ptr<Capture> ended;
    {
      std::lock_guard<std::mutex> lock(record_mutex());
      if (!capture_)
        return;
      ended.swap(capture_);
      auto& recorder = *ended->recorder;
      move_open_window(recorder);
      recorder.captured = nullptr;
      captured_->device = recorder.device;
      finish_windows(*captured_, *ended);
      forget_if_ended(recorder);
      ended->under_way = false;
    }
    if (t_capture.capture == ended)
      t_capture = {};
  }

  static RandomStream current_stream_of(c10::DeviceIndex device) {
    auto* generator = default_generator(device).get<GeneratorImpl>();
    std::lock_guard<std::mutex> lock(generator->mutex_);
    return {generator->current_seed(), generator->get_offset()};
  }

  // Makes the recorder's open window, which is empty, one that was captured. Where another one has
  // a buffer that this needs: that one's recorder, and nothing else.
  static std::shared_ptr<Recorder> enter(
      Recorder& recorder, const Window& captured, std::vector<int64_t>& numbers) {
    std::lock_guard<std::mutex> lock(record_mutex());
    for (const auto& slot : captured.slots) {
      if (!slot.buffer)
        continue;
      for (const auto& use : slot.buffer->uses) {
        if (slot.written || use.window->slots[use.slot].written)
          return use.window->recorder->shared_from_this();
      }
    }
    auto& open = recorder.open;
    open.calls = captured.calls;
    for (const auto& call : open.calls)
      ++call.entry->in_windows;
    open.by_rule = captured.by_rule;
    open.slots_of_calls = captured.slots_of_calls;
    open.numbers = std::move(numbers);
    open.lines = captured.lines;
    open.slots = captured.slots;
    open.replayed = true;
    for (size_t k = 0; k < open.slots.size(); ++k) {
      const auto& slot = open.slots[k];
      if (!slot.buffer)
        continue;
      auto& buffer = *slot.buffer;
      buffer.uses.push_back({&open, static_cast<int32_t>(k)});
      buffer.quiet.store(false, std::memory_order_relaxed);
      buffer.has_contents = buffer.has_contents || slot.written;
      open.uses_failed = open.uses_failed || buffer.failure != nullptr;
    }
    return nullptr;
  }

  const bool keeps_graph_;
  bool debug_ = false;
  c10::MempoolId_t pool_;
  // By `record_mutex`.
  std::shared_ptr<Capture> capture_;  // while it is captured
  std::shared_ptr<CapturedWindows> captured_;
};

using at::GraphImplRegistry;
using at::RegistererGraphImplRegistry;
// By the name that the device type has in capitals.
C10_REGISTER_TYPED_CLASS(GraphImplRegistry, "TENON", Graph);

}  // namespace

CapturedWindows::~CapturedWindows() {
  std::lock_guard<std::mutex> lock(record_mutex());
  for (const auto& window : windows) {
    window->let_entries_go();
    for (const auto& slot : window->slots) {
      if (slot.buffer)
        --slot.buffer->graphs;
    }
  }
}

bool is_capturing() {
  return t_capture.capture != nullptr && !t_capture.outside && t_capture.capture->under_way;
}

bool is_capturing(c10::Stream stream) {
  return is_capturing() && t_capture.capture->recorder->device == stream.device_index() &&
         t_capture.capture->recorder->stream == stream.id();
}

CapturedRandom* captured_random(c10::DeviceIndex device) {
  return is_capturing() && is_capturing(current_stream(device)) ? &t_capture.capture->random
                                                                : nullptr;
}

void refuse_in_capture(std::string_view what) {
  if (C10_UNLIKELY(is_capturing()))
    refuse(what);
}

OutsideOfCapture::OutsideOfCapture() : Exchanged(t_capture.outside, true) {}

void keep_captured(Recorder& recorder, CommitReason reason) {
  switch (reason) {
    case CommitReason::boundary:
    case CommitReason::length:
    case CommitReason::memory:
    case CommitReason::shared: {
      std::lock_guard<std::mutex> lock(record_mutex());
      if (recorder.captured)
        move_open_window(recorder);
      return;
    }
    default:
      refuse(c10::str('"', name_of(reason), "\" (of a tensor that the graph uses)"));
  }
}

}  // namespace tenon
