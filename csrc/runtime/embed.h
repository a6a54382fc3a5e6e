// How functions of the C interface tell what failed.
#pragma once

#include <new>

#include "runtime/error.h"
#include "tenon.h"

namespace tenon {

// What failed. Gives the code.
int32_t tell(tenon_status* status, int32_t code, const char* text);

// Calls `work`, and tells what it raises.
template <class Work>
int32_t told(tenon_status* status, Work&& work) {
  try {
    work();
    return TENON_OK;
  } catch (const Error& error) {
    return tell(status, static_cast<int32_t>(error.kind), error.what());
  } catch (const std::bad_alloc&) {
    return tell(status, TENON_OUT_OF_MEMORY, "the host has no memory left");
  } catch (const std::exception& error) {
    return tell(status, TENON_ERROR, error.what());
  }
}

}  // namespace tenon
