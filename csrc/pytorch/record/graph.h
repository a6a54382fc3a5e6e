// Graphs: `torch.accelerator.Graph`. While a thread captures one, the windows that it records are
// kept where they would be submitted. Each replay submits them again, in order. So a replay is a
// run of windows: by their plans, with the memory of the captured tensors.
//
//   capture_begin ──▶ calls ──▶ window ──▶ window ──▶ capture_end        nothing runs
//   replay ──────────────────▶ submit ──▶ submit                         everything runs
//
// What was there before the capture stays at its place. So does what is alive at its end. What was
// made and died in one window is its plan's temporary, as ever.
//
// What would need a value while a graph is captured raises: it would be one from before the
// replay. A call with new layouts is taught by zeros. Random numbers are drawn at each replay: the
// capture has a stream of them of its own, and tells how far from its start each draw is.
#pragma once

#include <memory>
#include <vector>

#include "device/pending.h"
#include "record/recorder.h"

namespace tenon {

// The graph has them, and each replay while it is under way.
struct CapturedWindows {
  CapturedWindows() = default;
  CapturedWindows(const CapturedWindows&) = delete;
  CapturedWindows& operator=(const CapturedWindows&) = delete;
  ~CapturedWindows();  // not under `record_mutex`

  std::vector<std::unique_ptr<Window>> windows;
  // Once the capture is over.
  c10::DeviceIndex device = 0;
  // By window: where in its numbers the seeds of draws are. An offset follows each, which counts
  // from the first of those that a replay takes.
  std::vector<std::vector<size_t>> draws;
  uint64_t drawn = 0;  // how many these are
};

// Whether the calling thread captures a graph.
bool is_capturing();

// What is done in this scope is not part of the graph that the thread captures.
struct OutsideOfCapture : Exchanged<bool> {
  OutsideOfCapture();
};

// In the place of a submission, where a graph is captured from the recorder: keeps the window that
// ends here. Raises for a reason that needs the window to have run.
void keep_captured(Recorder& recorder, CommitReason reason);

}  // namespace tenon
