// Keys that are built again for each call, and keep their memory.
#pragma once

#include "record/op_key.h"

namespace tenon {

// A key for the call in work. A call may come while another one of the thread's is recorded: an
// object that dies then may have a finalizer.
class KeyInUse {
 public:
  KeyInUse() {
    if (C10_UNLIKELY(t_depth == t_keys.count))
      t_keys.add();
    key_ = t_keys.all[t_depth++];
  }
  ~KeyInUse() {
    --t_depth;
  }
  KeyInUse(const KeyInUse&) = delete;
  KeyInUse& operator=(const KeyInUse&) = delete;
  OpKey& operator*() {
    return *key_;
  }

 private:
  static constexpr size_t kMostNested = 64;
  struct Keys;
  struct FreeAtExit {
    Keys* keys;
    ~FreeAtExit();
  };
  // Plain memory, which costs nothing to reach; the keys are the thread's for good.
  struct Keys {
    OpKey* all[kMostNested];
    size_t count;
    void add() {
      TORCH_CHECK(count < kMostNested, "more than ", kMostNested, " calls within one another");
      all[count++] = new OpKey();
      static thread_local FreeAtExit free_at_exit{this};
      (void)free_at_exit;
    }
  };
  static thread_local Keys t_keys;
  static thread_local size_t t_depth;
  OpKey* key_;
};
inline thread_local KeyInUse::Keys KeyInUse::t_keys{};
inline thread_local size_t KeyInUse::t_depth = 0;

inline KeyInUse::FreeAtExit::~FreeAtExit() {
  while (keys->count > 0)
    delete keys->all[--keys->count];
}

}  // namespace tenon
