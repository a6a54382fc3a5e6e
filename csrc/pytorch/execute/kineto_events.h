// The events of a log as Kineto's: their tracks, and arrows from calls to the kernels that compute
// them.
#pragma once

#include <IActivityProfiler.h>
#include <output_base.h>

#include <deque>

#include "device/profile.h"
#include "execute/kineto_ranges.h"

namespace tenon {

// Tracks beside the threads' own, whose numbers are no thread's; and on a device that of its queue,
// that of copies which run beside it, and those of ranges.
constexpr int32_t kCommits = 1 << 29, kLookUps = kCommits + 1, kReferenceRuns = kCommits + 2,
                  kBuilder = kCommits + 3;
constexpr int32_t kQueue = 0, kRanges = 1, kCopies = 1 << 20;

// Gives them to Kineto. `linked` finds its own event of an op or a range by number, `start` is when
// the session began.
void log_events(
    libkineto::ActivityLogger& logger,
    const libkineto::getLinkedActivityCallback& linked,
    int64_t start,
    std::deque<ProfileEvent> events,
    const OuterRanges& outer);

}  // namespace tenon
