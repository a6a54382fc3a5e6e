// The queues of a device with copy engines, as one queue: copies run beside kernels.
//
// What is enqueued waits, on the device, for what was enqueued before it on another queue and
// touches the same memory, if one of the two writes there. Nothing else waits, so the results are
// those of one queue.
#pragma once

#include <vector>

#include "runtime/queue.h"

namespace tenon {

// A copy between host and device of fewer bytes goes to the queue of kernels, unless it comes from
// there and would stand behind work that it does not need: an event costs more than it takes.
constexpr size_t kLeastBytesApart = size_t{1} << 16;

// `kernels` also copies within the device. The first of `copies` is for copies to the device, the
// last one for those to the host. All of them know `after`.
std::unique_ptr<Queue> several_queues(
    std::unique_ptr<Queue> kernels, std::vector<std::unique_ptr<Queue>> copies);

// Several commits as one, which has passed when all have.
Ticket all_of(std::vector<Ticket> commits);

}  // namespace tenon
