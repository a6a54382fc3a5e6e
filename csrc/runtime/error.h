// Errors of the runtime.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

#include "tenon.h"

namespace tenon {

enum class ErrorKind : int32_t {
  error = TENON_ERROR,
  out_of_memory = TENON_OUT_OF_MEMORY,
  unsupported = TENON_UNSUPPORTED,
  device_lost = TENON_DEVICE_LOST,
  damaged = TENON_DAMAGED,
  out_of_range = TENON_OUT_OF_RANGE
};

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& text) : std::runtime_error(text), kind(kind) {}
  const ErrorKind kind;
};

// A part of a text: a text itself, or a whole number.
enum class TextPart : uint64_t { characters, string, view, number, natural };
constexpr int kTextPartBits = 3;

template <class T>
constexpr TextPart kTextPart = std::signed_integral<T>             ? TextPart::number
                               : std::unsigned_integral<T>         ? TextPart::natural
                               : std::same_as<T, std::string>      ? TextPart::string
                               : std::same_as<T, std::string_view> ? TextPart::view
                                                                   : TextPart::characters;

// A number, or a text's address.
template <class T>
uint64_t word_of_part(const T& part) {
  constexpr auto kPart = kTextPart<T>;
  if constexpr (kPart == TextPart::number)
    return static_cast<uint64_t>(int64_t{part});
  else if constexpr (kPart == TextPart::natural)
    return part;
  else if constexpr (kPart == TextPart::characters)
    return reinterpret_cast<uintptr_t>(static_cast<const char*>(part));
  else
    return reinterpret_cast<uintptr_t>(&part);
}

// The kinds of parts, the first one in the lowest bits.
template <class... Parts>
constexpr uint64_t kTextParts = [] {
  static_assert(sizeof...(Parts) * kTextPartBits <= 64);
  uint64_t kinds = 0;
  int place = 0;
  ((kinds |= static_cast<uint64_t>(kTextPart<Parts>) << kTextPartBits * place++), ...);
  return kinds;
}();

// A text with a `{}` for each of these parts; the compiler counts them.
template <class... Parts>
struct TextFormat {
  consteval TextFormat(const char* text) : text(text) {
    size_t places = 0;
    for (const auto* c = text; *c != '\0'; ++c)
      places += c[0] == '{' && c[1] == '}' ? 1 : 0;
    if (places != sizeof...(Parts))
      throw "a text has as many parts as its format has places";
  }
  const char* const text;
};
template <class... Parts>
using FormatOf = TextFormat<std::type_identity_t<Parts>...>;

// With a word for each part. There are many calls, so each of them is as short as it can be.
std::string text_of_words(const char* format, uint64_t kinds, ...);
[[noreturn]] void fail_with_words(ErrorKind kind, const char* format, uint64_t kinds, ...);

template <class... Parts>
[[gnu::cold]] std::string text_of(FormatOf<Parts...> format, const Parts&... parts) {
  return text_of_words(format.text, kTextParts<Parts...>, word_of_part(parts)...);
}

template <class... Parts>
[[noreturn, gnu::cold]] void fail(
    ErrorKind kind, FormatOf<Parts...> format, const Parts&... parts) {
  fail_with_words(kind, format.text, kTextParts<Parts...>, word_of_part(parts)...);
}

// Puts an element behind a comma, unless it is the first one.
void add_to_list(std::string& list, std::string_view element);

// Raises unless the data of a file is as it has to be.
template <class... Parts>
void check_data(bool holds, FormatOf<Parts...> format, const Parts&... parts) {
  if (!holds) [[unlikely]]
    fail<Parts...>(ErrorKind::damaged, format, parts...);
}

}  // namespace tenon
