#include "record/graph.h"

#include <ATen/core/GraphImplInterface.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <optional>
#include <thread>
#include <unordered_map>
#include <utility>

#include "device/generator.h"
#include "device/guard.h"
#include "device/target.h"
#include "record/direct.h"

namespace tenon {
namespace {

// The windows of the graph that this thread captures, and where they come from.
struct CaptureOfThread {
  std::shared_ptr<CapturedWindows> windows;
  Recorder* recorder = nullptr;
  bool outside = false;
};
thread_local CaptureOfThread t_capture;

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

// The capture is over: says of each slot what it is in a replay. Under `record_mutex`.
void finish_windows(CapturedWindows& captured) {
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
    }
    window->held_bytes = 0;
    window->uses_shared = window->uses_failed = false;
    window->replayed = true;
  }
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
    TORCH_CHECK(!recorder_, "This graph is being captured already");
    TORCH_CHECK(captured_ == nullptr, "This graph has been captured: `reset` it first");
    TORCH_CHECK(!is_capturing(), "This thread captures another graph");
    // Each graph has memory of its own: that of a pool is never in the way of another graph's.
    if (pool.first != 0 || pool.second != 0)
      pool_ = pool;
    device_ = current_device();
    recorder_ = recorder_of(device_).shared_from_this();
    submit(*recorder_, CommitReason::request);
    captured_ = std::make_shared<CapturedWindows>();
    const auto& generator = default_generator(device_);
    {
      std::lock_guard<std::mutex> lock(generator.unsafeGetGeneratorImpl()->mutex_);
      seed_ = generator.current_seed();
      offset_ = generator.unsafeGetGeneratorImpl()->get_offset();
    }
    {
      std::lock_guard<std::mutex> lock(record_mutex());
      recorder_->captured = captured_;
    }
    t_capture = {captured_, recorder_.get()};
    forget_windows();  // the next calls are recorded
  }

  void capture_end() override {
    TORCH_CHECK(
        recorder_ && t_capture.windows == captured_,
        "This thread does not capture this graph: `capture_begin` comes first");
    stop();
    for (const auto& window : captured_->windows)
      draws_.push_back(draws_of(*window));
    // Nothing was drawn: that comes with the replays.
    const auto& generator = default_generator(device_);
    {
      std::lock_guard<std::mutex> lock(generator.unsafeGetGeneratorImpl()->mutex_);
      if (generator.current_seed() == seed_)
        generator.unsafeGetGeneratorImpl()->set_offset(offset_);
    }
    if (!keeps_graph_)
      instantiate();
  }

  // The plans come with the first replay, which waits for them.
  void instantiate() override {
    check_captured();
  }

  void replay() override {
    check_captured();
    refuse_in_capture("a replay");
    auto& recorder = recorder_of(device_);
    submit(recorder, CommitReason::handover);
    for (size_t k = 0; k < captured_->windows.size(); ++k) {
      const auto& window = *captured_->windows[k];
      auto numbers = window.numbers;
      draw_again(draws_[k], numbers);
      while (const auto other = enter(recorder, window, numbers)) {
        submit(*other, CommitReason::handover);
        std::this_thread::yield();
      }
      submit(recorder, CommitReason::request);
    }
  }

  void reset() override {
    TORCH_CHECK(!recorder_, "This graph is being captured");
    draws_.clear();
    if (captured_ == nullptr)
      return;
    const auto unused = std::exchange(captured_, nullptr);  // ends after the lock
    std::lock_guard<std::mutex> lock(record_mutex());
    for (const auto& window : unused->windows)
      window->let_entries_go();
  }

  c10::MempoolId_t pool() const override {
    return pool_;
  }

  void enable_debug_mode() override {
    debug_ = true;
  }

  void debug_dump(const std::string& path) override {
    TORCH_CHECK(debug_, "`enable_debug_mode` comes before `debug_dump`");
    check_captured();
    std::ofstream file(path);
    for (size_t k = 0; k < captured_->windows.size(); ++k) {
      const auto& window = *captured_->windows[k];
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
  void check_captured() const {
    TORCH_CHECK(captured_ && !recorder_, "This graph has not been captured");
  }

  // Ends the capture, where one is under way.
  void stop() {
    if (!recorder_)
      return;
    {
      std::lock_guard<std::mutex> lock(record_mutex());
      move_open_window(*recorder_);
      recorder_->captured = nullptr;
      finish_windows(*captured_);
    }
    captured_->under_way = false;
    if (t_capture.windows == captured_)
      t_capture = {};
    recorder_ = nullptr;
  }

  // In order, as the calls would that were captured.
  void draw_again(const std::vector<size_t>& draws, std::vector<int64_t>& numbers) const {
    for (const auto at : draws) {
      const auto stream = draw(std::nullopt, device_);
      numbers[at] = static_cast<int64_t>(stream.seed);
      numbers[at + 1] = static_cast<int64_t>(stream.offset);
    }
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
  c10::DeviceIndex device_ = 0;
  uint64_t seed_ = 0, offset_ = 0;      // of the generator, before the capture
  std::shared_ptr<Recorder> recorder_;  // while it is captured
  std::shared_ptr<CapturedWindows> captured_;
  std::vector<std::vector<size_t>> draws_;  // by window
};

using at::GraphImplRegistry;
using at::RegistererGraphImplRegistry;
// By the name that the device type has in capitals.
C10_REGISTER_TYPED_CLASS(GraphImplRegistry, "TENON", Graph);

}  // namespace

bool is_capturing() {
  return t_capture.windows != nullptr && !t_capture.outside && t_capture.windows->under_way;
}

bool is_capturing(c10::Stream stream) {
  return is_capturing() && t_capture.recorder->device == stream.device_index() &&
         t_capture.recorder->stream == stream.id();
}

void refuse_in_capture(std::string_view what) {
  if (C10_UNLIKELY(is_capturing()))
    refuse(what);
}

OutsideOfCapture::OutsideOfCapture() : before_(std::exchange(t_capture.outside, true)) {}

OutsideOfCapture::~OutsideOfCapture() {
  t_capture.outside = before_;
}

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
