// How functions of the C interface tell what failed.
#pragma once

#include <algorithm>
#include <cstring>
#include <new>

#include "runtime/error.h"
#include "tenon.h"

namespace tenon {

// Calls `work`, and tells what it raises.
template <class Work>
int32_t told(tenon_status* status, Work&& work) {
  const auto tell = [status](int32_t code, const char* text) {
    if (status != nullptr) {
      status->code = code;
      auto length = std::min(std::strlen(text), sizeof(status->text) - 1);
      // No character is cut in two: its further bytes begin with the bits 10.
      while (length > 0 && text[length] != '\0' && (text[length] & 0xc0) == 0x80)
        --length;
      std::memcpy(status->text, text, length);
      status->text[length] = '\0';
    }
    return code;
  };
  try {
    work();
    return TENON_OK;
  } catch (const Error& error) {
    return tell(static_cast<int32_t>(error.kind), error.what());
  } catch (const std::bad_alloc&) {
    return tell(TENON_OUT_OF_MEMORY, "the host has no memory left");
  } catch (const std::exception& error) {
    return tell(TENON_ERROR, error.what());
  }
}

}  // namespace tenon
