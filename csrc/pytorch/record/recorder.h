// Who records: a thread, for one stream of one device. Each has a window of its own.
#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <memory>
#include <optional>

#include "device/pending.h"
#include "record/window.h"

namespace tenon {

enum class ExecuteMode : int { automatic = 0, reference = 1, compiled = 2, verify = 3, direct = 4 };

struct CapturedWindows;
class Profiled;
struct Recording;

// Guarded by `record_mutex`, but for what only its thread touches.
struct Recorder : std::enable_shared_from_this<Recorder> {
  Recorder(c10::DeviceIndex device, c10::StreamId stream);

  // Whether the window ends before a call, where nothing is lost by it: the call starts from
  // memory.
  std::optional<CommitReason> ends_before(const OpEntry& call);
  // Appends a call to the window, when what other threads and streams recorded with its buffers is
  // submitted. Whether the window has to end now.
  std::optional<CommitReason> append(
      const OpKey& key, const Recording& call, const std::string& line, Profiled& profiled);

  const c10::DeviceIndex device;
  const c10::StreamId stream;
  Window open;
  Window spare;                               // an emptied window, for its memory
  std::shared_ptr<Failure> unseen;            // the first error of its windows that nobody has seen
  std::shared_ptr<CapturedWindows> captured;  // where windows go while a graph is captured
  bool ended = false;                         // its thread has: nothing more is recorded

 private:
  // A place that comes again so soon lies in a loop within the loop, and tells nothing. Where such
  // a loop goes on for so many calls, its windows are of whole rounds. They begin at the place of a
  // round that hashes lowest. Windows of the greatest length would each begin at another place, and
  // need a plan of their own.
  static constexpr int64_t kSoon = 128;
  struct Place {
    uint64_t hash = 0;
    int64_t number = -1;  // of the call, among all that were noted
  };

  uint64_t recent_ = 0;               // hashes of the last four calls
  std::array<uint64_t, 2> before_{};  // hashes at the last two places where windows may end
  int64_t noted_ = 0;
  uint64_t context_ = 0;              // a hash of the last 64 calls
  std::deque<Place> lowest_;          // each lower than all later ones; the first one is the lowest
  std::array<Place, 256> repeats_{};  // by `context_`: where it was last
  std::array<uint64_t, kSoon> contexts_{};  // the last ones
  int64_t round_ = 0;    // calls of a round of the loop that the last call was in; 0: in none
  int64_t in_loop_ = 0;  // how many calls were
  uint64_t lowest_in_loop_ = 0;  // `context_`, of these

  bool try_append(const OpKey& key, const Recording& call, const std::string& line, bool at_last);
  std::optional<CommitReason> has_to_end();
  void note(const OpEntry& call);
  bool is_repeated();
};

// The calling thread's, for the current stream of the device.
Recorder& recorder_of(c10::DeviceIndex device);

// Hands its window to the device. Errors do not come from here: they are the buffers'.
void submit(Recorder& recorder, CommitReason reason);
// Where its thread has ended and its last window was submitted: it is known no longer. Under
// `record_mutex`. Its thread may have recorded more, and ended, while a window of it ran.
void forget_if_ended(const Recorder& recorder);

void commit_all(CommitReason reason);

// Those of threads that are there, and of others that left calls.
size_t recorder_count();

// Calls recorded, and windows by the reason of their commit.
std::pair<int64_t, std::vector<int64_t>> record_counts();
void count_recorded_call();

void set_execute_mode(ExecuteMode mode);
ExecuteMode execute_mode();
// Whether calls are recorded at present, on this thread.
bool is_recording();

}  // namespace tenon
