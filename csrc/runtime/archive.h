// Plain data to bytes and back, for files and for other processes: docs/plan-file.md has the
// format.
//
// One function, `fields(archive, x)`, names the fields of a type for both ways. Reading never goes
// beyond the end, and raises where the bytes are no such data.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "runtime/error.h"
#include "runtime/hash.h"
#include "runtime/layout.h"
#include "runtime/size_expression.h"

namespace tenon {

// Damage changes it. Over words of eight bytes, the last one filled up with zeros.
uint64_t checksum(std::string_view bytes, uint64_t seed = 0);
// A file with these bytes, whole or not at all; false where that is not possible.
bool write_whole(const std::string& path, std::string_view bytes);
// The same of a file that begins with a line of its kind's and a checksum of what follows. Gives
// that of such a file's bytes; none where these are damaged, or of another kind.
bool write_checked(const std::string& path, std::string_view kind, std::string_view body);
std::optional<std::string_view> checked(std::string_view bytes, std::string_view kind);
// A file's bytes; none where it cannot be read.
std::optional<std::string> read_whole(const std::string& path);

class Writer {
 public:
  static constexpr bool reads = false;
  std::string bytes;

  template <class... Fields>
  void operator()(const Fields&... all) {
    (put(all), ...);
  }

 private:
  // Seven bits at a time, the low ones first; small numbers of either sign are short.
  void number(int64_t x) {
    auto left = static_cast<uint64_t>(x) << 1 ^ static_cast<uint64_t>(x >> 63);
    for (; left >= 0x80; left >>= 7)
      bytes.push_back(static_cast<char>(left | 0x80));
    bytes.push_back(static_cast<char>(left));
  }

  template <class T>
  void put(const T& x);
  template <class T>
  void put(const std::vector<T>& all) {
    number(static_cast<int64_t>(all.size()));
    for (const T& x : all)
      put(x);
  }
  template <class T>
  void put(const std::optional<T>& x) {
    number(x.has_value());
    if (x)
      put(*x);
  }
};

class Reader {
 public:
  static constexpr bool reads = true;
  explicit Reader(std::string_view bytes) : left_(bytes) {}

  template <class... Fields>
  void operator()(Fields&... all) {
    (get(all), ...);
  }

  bool at_end() const {
    return left_.empty();
  }

  // A text where it stands, which lives as long as the bytes do.
  std::string_view text() {
    return take(count());
  }

  // Values and arguments lie within one another: not so deep that reading them needs much stack.
  template <class T>
  void within(std::vector<T>& elements) {
    constexpr int kDeepest = 16;
    check_data(depth_ < kDeepest, "lists lie too deep within one another");
    ++depth_;
    get(elements);
    --depth_;
  }

 private:
  std::string_view take(size_t count) {
    check_data(count <= left_.size(), "the data ends early");
    const auto taken = left_.substr(0, count);
    left_.remove_prefix(count);
    return taken;
  }

  int64_t number() {
    uint64_t found = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<uint8_t>(take(1).front());
      found |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80)
        return static_cast<int64_t>(found >> 1 ^ (~(found & 1) + 1));
    }
    fail(ErrorKind::damaged, "a number is too long");
  }
  // Each element takes a byte at least, and one that takes much memory has many fields. So there is
  // no more memory than there is data for it.
  size_t count(size_t size_of_element = 1) {
    constexpr size_t kMostToByte = 128;
    const auto found = static_cast<uint64_t>(number());
    check_data(
        found <= left_.size() / (size_of_element / kMostToByte + 1),
        "a list is longer than the data");
    return found;
  }

  template <class T>
  void get(T& x);
  template <class T>
  void get(std::vector<T>& all) {
    all = std::vector<T>(count(sizeof(T)));
    if constexpr (std::is_same_v<T, bool>) {
      for (auto x : all) {  // what stands for a bit
        bool found = false;
        get(found);
        x = found;
      }
    } else {
      for (auto& x : all)
        get(x);
    }
  }
  template <class T>
  void get(std::optional<T>& x) {
    if (number() == 0) {
      x.reset();
    } else {
      get(x.emplace());
    }
  }

  std::string_view left_;
  int depth_ = 0;
};

template <class Archive>
void fields(Archive& archive, TensorLayout& x) {
  archive(x.dtype, x.sizes, x.strides, x.offset, x.nbytes, x.differentiable, x.wrapped_number);
}

template <class Archive>
void fields(Archive& archive, SizeExpression& x) {
  archive(x.words);
}

template <class T>
void Writer::put(const T& x) {
  if constexpr (std::is_same_v<T, double>) {
    bytes.append(reinterpret_cast<const char*>(&x), sizeof(x));
  } else if constexpr (std::is_same_v<T, std::string> || std::is_same_v<T, std::string_view>) {
    number(static_cast<int64_t>(x.size()));
    bytes += x;
  } else if constexpr (std::is_integral_v<T> || std::is_enum_v<T>) {
    number(static_cast<int64_t>(x));
  } else {
    fields(*this, const_cast<T&>(x));
  }
}

template <class T>
void Reader::get(T& x) {
  if constexpr (std::is_same_v<T, double>) {
    std::memcpy(&x, take(sizeof(x)).data(), sizeof(x));
  } else if constexpr (std::is_same_v<T, std::string>) {
    x = text();
  } else if constexpr (std::is_same_v<T, DType>) {
    const auto found = number();
    check_data(found >= 0 && found <= static_cast<int64_t>(kNoDType), "no dtype");
    x = static_cast<T>(found);
  } else if constexpr (std::is_same_v<T, bool>) {
    x = number() != 0;
  } else if constexpr (std::is_integral_v<T> || std::is_enum_v<T>) {
    const auto found = number();
    x = static_cast<T>(found);
    check_data(static_cast<int64_t>(x) == found, "a number is out of range");
  } else {
    fields(*this, x);
  }
}

}  // namespace tenon
