// What was handed to the devices' queues, by number, and what came of it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "device/buffer.h"

namespace tenon {

// Sees to a submission that has run. `failed`: what the device itself failed with, so that nothing
// of it can be relied on; nullptr: it ran to its end.
using Finish = std::function<void(const std::shared_ptr<Failure>& failed)>;

// The number of the window that a device is to run now. Under its queue lock, as what follows,
// until one of the two that end it.
Submission begin_submission(c10::DeviceIndex device);
// It has run.
void end_submission(c10::DeviceIndex device, Submission number);
// It was enqueued on an asynchronous device; `finish` is called once it has run, after those of all
// that was submitted before. `what` it computes is added to the text of the device's error.
void enqueue_submission(
    c10::DeviceIndex device, Submission number, std::string what, Finish finish);

// What is no window's, and was just enqueued.
struct Apart {
  // It writes these, whose contents are the device's error if it fails.
  std::vector<BufferRef> written;
  // What it uses. An error that one of them ends with is then that of what is written as well.
  std::vector<BufferRef> used{};
  bool replaces = false;             // it writes them as a whole: an error of before is gone
  std::function<void()> keeps = {};  // what the host's memory lives by until then
  std::string what = {};             // as `enqueue_submission` takes it
};
void submit_apart(c10::DeviceIndex device, Apart apart);

// The ops of a submission as an error's text has them, of which these are the first: `in:
// aten::relu, aten::add.Tensor and others; 12 calls`.
std::string text_of_ops(const std::vector<std::string>& first, size_t calls, const char* unit);

// Sees to all that has run on an asynchronous device, in order.
void finish_passed(c10::DeviceIndex device);

// Whether the device's queue has it, and all before it.
bool is_enqueued(c10::DeviceIndex device, Submission number);

}  // namespace tenon
