#include "runtime/error.h"

#include <cstdarg>
#include <iterator>

namespace tenon {
namespace {

void append(std::string& text, TextPart kind, uint64_t word) {
  switch (kind) {
    case TextPart::characters:
      text += reinterpret_cast<const char*>(word);
      return;
    case TextPart::string:
      text += *reinterpret_cast<const std::string*>(word);
      return;
    case TextPart::view:
      text += *reinterpret_cast<const std::string_view*>(word);
      return;
    case TextPart::number:
      if (static_cast<int64_t>(word) < 0) {
        text += '-';
        word = -word;
      }
      [[fallthrough]];
    case TextPart::natural: {
      char digits[20];
      auto* first = std::end(digits);
      do {
        *--first = static_cast<char>('0' + word % 10);
        word /= 10;
      } while (word != 0);
      text.append(first, std::end(digits));
    }
  }
}

std::string text_of_list(const char* format, uint64_t kinds, va_list words) {
  std::string text;
  for (; *format != '\0'; ++format) {
    if (format[0] != '{' || format[1] != '}') {
      text += *format;
      continue;
    }
    constexpr auto kKind = (uint64_t{1} << kTextPartBits) - 1;
    append(text, static_cast<TextPart>(kinds & kKind), va_arg(words, uint64_t));
    kinds >>= kTextPartBits;
    ++format;
  }
  return text;
}

}  // namespace

std::string text_of_words(const char* format, uint64_t kinds, ...) {
  va_list words;
  va_start(words, kinds);
  auto text = text_of_list(format, kinds, words);
  va_end(words);
  return text;
}

void add_to_list(std::string& list, std::string_view element) {
  if (!list.empty())
    list += ", ";
  list += element;
}

void fail_with_words(ErrorKind kind, const char* format, uint64_t kinds, ...) {
  va_list words;
  va_start(words, kinds);
  const auto text = text_of_list(format, kinds, words);
  va_end(words);
  throw Error(kind, text);
}

}  // namespace tenon
