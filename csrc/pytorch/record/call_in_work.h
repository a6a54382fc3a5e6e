// A call that is being recorded: it has a key, and the entries that it has found stay.
//
// The op cache lets go of entries (record/op_cache.h), and calls refer to them by bare pointers. So
// an entry ends only when no call, no window and no plan may still have one. A call in work says so
// in memory of its thread, which costs two stores. Who wants to free entries makes all threads'
// stores visible first (membarrier), which is slow and rare.
#pragma once

#include <memory>
#include <vector>

#include "record/op_key.h"

namespace tenon {

struct OpEntry;

// A call may come while another one of the thread's is recorded: an object that dies then may have
// a finalizer.
class CallInWork {
 public:
  CallInWork();
  ~CallInWork();
  CallInWork(const CallInWork&) = delete;
  CallInWork& operator=(const CallInWork&) = delete;

  // To be built; its memory is used again for the next call.
  OpKey& key() {
    return *key_;
  }

 private:
  OpKey* key_;
};

using Entries = std::vector<std::shared_ptr<OpEntry>>;

// Takes over entries that no look-up finds any more. Under `record_mutex`.
void retire(Entries entries);
// Those that nobody uses, for the caller to free once the lock is open. Under `record_mutex`,
// within one `CallInWork` of the caller's.
Entries retired_and_unused();

}  // namespace tenon
