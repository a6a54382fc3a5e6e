#include "runtime/error.h"

namespace tenon {

void TextPart::append_to(std::string& text) const {
  switch (kind_) {
    case Kind::characters:
      text += reinterpret_cast<const char*>(bits_);
      return;
    case Kind::string:
      text += *reinterpret_cast<const std::string*>(bits_);
      return;
    case Kind::view:
      text += *reinterpret_cast<const std::string_view*>(bits_);
      return;
    case Kind::number:
      text += std::to_string(static_cast<int64_t>(bits_));
      return;
    case Kind::natural:
      text += std::to_string(bits_);
  }
}

std::string text_of_parts(std::initializer_list<TextPart> parts) {
  std::string text;
  for (const auto& part : parts)
    part.append_to(text);
  return text;
}

void fail_with(ErrorKind kind, std::initializer_list<TextPart> parts) {
  throw Error(kind, text_of_parts(parts));
}

}  // namespace tenon
