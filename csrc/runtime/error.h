// Errors of the runtime.
#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
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

// A part of a text: a text itself, or a whole number. Small, as there are many of them.
class TextPart {
 public:
  TextPart(const char* text) : kind_(Kind::characters), bits_(reinterpret_cast<uintptr_t>(text)) {}
  TextPart(const std::string& text)
      : kind_(Kind::string), bits_(reinterpret_cast<uintptr_t>(&text)) {}
  TextPart(const std::string_view& text)
      : kind_(Kind::view), bits_(reinterpret_cast<uintptr_t>(&text)) {}
  TextPart(std::signed_integral auto number)
      : kind_(Kind::number), bits_(static_cast<uint64_t>(int64_t{number})) {}
  TextPart(std::unsigned_integral auto number) : kind_(Kind::natural), bits_(number) {}

  void append_to(std::string& text) const;

 private:
  enum class Kind : uint8_t { characters, string, view, number, natural } kind_;
  uint64_t bits_;  // of a number, or of a text's address
};

std::string text_of_parts(std::initializer_list<TextPart> parts);
[[noreturn]] void fail_with(ErrorKind kind, std::initializer_list<TextPart> parts);

template <class... Parts>
[[gnu::cold]] std::string text_of(const Parts&... parts) {
  return text_of_parts({TextPart(parts)...});
}

template <class... Parts>
[[noreturn, gnu::cold]] void fail(ErrorKind kind, const Parts&... parts) {
  fail_with(kind, {TextPart(parts)...});
}

// Raises unless the data of a file is as it has to be.
template <class... Parts>
void check_data(bool holds, const Parts&... parts) {
  if (!holds) [[unlikely]]
    fail(ErrorKind::damaged, parts...);
}

}  // namespace tenon
