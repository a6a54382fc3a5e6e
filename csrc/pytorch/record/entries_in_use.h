// The op cache lets go of entries (record/op_cache.h), and calls refer to them by bare pointers. So
// an entry ends only when no call, no window and no plan may still have one.
//
// A call that is being recorded says so in memory of its thread, which costs two stores. Who wants
// to free entries makes all threads' stores visible first (membarrier), which is slow and rare.
#pragma once

#include <memory>
#include <vector>

namespace tenon {

struct OpEntry;

// While one lives on a thread, entries that it has found stay.
class UsesEntries {
 public:
  UsesEntries();
  ~UsesEntries();
  UsesEntries(const UsesEntries&) = delete;
  UsesEntries& operator=(const UsesEntries&) = delete;
};

using Entries = std::vector<std::shared_ptr<OpEntry>>;

// Takes over entries that no look-up finds any more. Under `record_mutex`.
void retire(Entries entries);
// Those that nobody uses, for the caller to free once the lock is open. Under `record_mutex`,
// within one `UsesEntries` of the caller's.
Entries retired_and_unused();

}  // namespace tenon
