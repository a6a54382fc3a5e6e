// Errors of the runtime.
#pragma once

#include <concepts>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

namespace tenon {

// The codes of include/tenon.h.
enum class ErrorKind : int32_t {
  error = 1,
  out_of_memory,
  unsupported,
  device_lost,
  damaged,
  out_of_range
};

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& text) : std::runtime_error(text), kind(kind) {}
  const ErrorKind kind;
};

inline std::string_view as_text(std::string_view part) {
  return part;
}
inline std::string as_text(std::integral auto part) {
  return std::to_string(part);
}

template <class... Parts>
[[gnu::cold]] std::string text_of(const Parts&... parts) {
  std::string text;
  (text.append(as_text(parts)), ...);
  return text;
}

template <class... Parts>
[[noreturn, gnu::cold]] void fail(ErrorKind kind, const Parts&... parts) {
  throw Error(kind, text_of(parts...));
}

// Raises unless the data of a file is as it has to be.
template <class... Parts>
void check_data(bool holds, const Parts&... parts) {
  if (!holds) [[unlikely]]
    fail(ErrorKind::damaged, parts...);
}

}  // namespace tenon
