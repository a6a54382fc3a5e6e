// When the phases of a data-parallel step begin and end, for DistributedDataParallel's statistics:
// those are of the host, which waits for a bucket's values before it sends them.

#include <torch/csrc/distributed/c10d/reducer_timer.hpp>

#include "device/target.h"

namespace c10d {
namespace {

class TenonTimer final : public Timer {
 public:
  explicit TenonTimer(c10::Device /*device*/) {}

  std::optional<int64_t> measureDifference(Event start, Event end) override {
    const auto from = getTimestamp(start), to = getTimestamp(end);
    // Without a collective in this step the last one's times are left.
    return from && to && *to >= *from ? std::optional(*to - *from) : std::nullopt;
  }
};

C10_REGISTER_TYPED_CLASS(TimerRegistry, tenon::kTenon, TenonTimer)

}  // namespace
}  // namespace c10d
