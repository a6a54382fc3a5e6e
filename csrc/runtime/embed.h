// How functions of the C interface tell what failed.
#pragma once

#include "runtime/error.h"
#include "tenon.h"

namespace tenon {

// What failed. Gives the code.
int32_t tell(tenon_status* status, int32_t code, const char* text);

// The same of the exception that is being handled.
int32_t tell_handled(tenon_status* status);
// Called once: who embeds the runtime has exceptions of its own, and asks `tell_handled` of others.
void set_tell(int32_t (*tell)(tenon_status* status));
int32_t tell_any(tenon_status* status);

// Calls `work`, and tells what it raises.
template <class Work>
int32_t told(tenon_status* status, Work&& work) {
  try {
    work();
    return TENON_OK;
  } catch (...) {
    return tell_any(status);
  }
}

// What a caller has to give. Raises where it is null.
void check_given(const void* pointer, const char* name);
template <class T>
T& given(T* pointer, const char* name) {
  check_given(pointer, name);
  return *pointer;
}

}  // namespace tenon
