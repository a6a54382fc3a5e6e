#include "runtime/archive.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <memory>

namespace tenon {

uint64_t checksum(std::string_view bytes, uint64_t seed) {
  auto sum = mixed(seed, static_cast<int64_t>(bytes.size()));
  for (size_t k = 0; k < bytes.size(); k += sizeof(int64_t)) {
    int64_t word = 0;
    std::memcpy(&word, bytes.data() + k, std::min(sizeof(word), bytes.size() - k));
    sum = mixed(sum, word);
  }
  return sum;
}

bool write_whole(const std::string& path, std::string_view bytes) {
  static std::atomic<int> count{0};
  const auto fresh = text_of("{}.{}.{}", path, getpid(), count++);
  auto* const file = std::fopen(fresh.c_str(), "wbe");
  if (file == nullptr)
    return false;
  const bool is_whole = std::fwrite(bytes.data(), 1, bytes.size(), file) == bytes.size();
  if (std::fclose(file) == 0 && is_whole && std::rename(fresh.c_str(), path.c_str()) == 0)
    return true;
  std::remove(fresh.c_str());
  return false;
}

bool write_checked(const std::string& path, std::string_view kind, std::string_view body) {
  const auto sum = checksum(body);
  const std::string_view bytes(reinterpret_cast<const char*>(&sum), sizeof(sum));
  return write_whole(path, text_of("{}{}{}", kind, bytes, body));
}

std::optional<std::string_view> checked(std::string_view bytes, std::string_view kind) {
  uint64_t sum = 0;
  if (!bytes.starts_with(kind) || bytes.size() < kind.size() + sizeof(sum))
    return std::nullopt;
  std::memcpy(&sum, bytes.data() + kind.size(), sizeof(sum));
  const auto body = bytes.substr(kind.size() + sizeof(sum));
  return checksum(body) == sum ? std::optional(body) : std::nullopt;
}

std::optional<std::string> read_whole(const std::string& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(
      std::fopen(path.c_str(), "rbe"), &std::fclose);
  if (file == nullptr)
    return std::nullopt;
  std::string bytes;
  char piece[4096];
  while (const auto count = std::fread(piece, 1, sizeof(piece), file.get()))
    bytes.append(piece, count);
  return bytes;
}

}  // namespace tenon
