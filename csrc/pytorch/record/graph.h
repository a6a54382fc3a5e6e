// Graphs: `torch.accelerator.Graph`. While a thread captures one, the windows that it records are
// kept where they would be submitted, and each replay submits them again, in order. So a replay is
// a run of windows: by their plans, with the memory of the captured tensors.
//
//   capture_begin ──▶ calls ──▶ window ──▶ window ──▶ capture_end        nothing runs
//   replay ──────────────────▶ submit ──▶ submit                         everything runs
//
// What the calls read and wrote before the capture, and what they made and is alive at its end,
// stays at its place. What was made and died in one window is its plan's temporary, as ever.
//
// What would need a value while a graph is captured raises: it would be one from before the
// replay. A call with new layouts is taught by zeros. Random numbers are drawn at each replay.
#pragma once

#include <atomic>
#include <memory>
#include <string_view>
#include <vector>

#include "record/recorder.h"

namespace tenon {

struct CapturedWindows {
  std::vector<std::unique_ptr<Window>> windows;
  std::atomic<bool> under_way{true};
};

// Does the calling thread capture a graph?
bool is_capturing();
// Raises where the calling thread captures a graph, of which `what` can be no part.
void refuse_in_capture(std::string_view what);

// What is done in this scope is not part of the graph that the thread captures.
class OutsideOfCapture {
 public:
  OutsideOfCapture();
  ~OutsideOfCapture();
  OutsideOfCapture(const OutsideOfCapture&) = delete;
  OutsideOfCapture& operator=(const OutsideOfCapture&) = delete;

 private:
  bool before_;
};

// In the place of a submission, where a graph is captured from the recorder: keeps the window that
// ends here. Raises for a reason that needs the window to have run.
void keep_captured(Recorder& recorder, CommitReason reason);

}  // namespace tenon
