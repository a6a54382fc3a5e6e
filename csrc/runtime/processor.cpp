#include "runtime/processor.h"

#include <algorithm>
#include <iterator>

#include "runtime/archive.h"

namespace tenon {
namespace {

// The psABI's levels of x86-64 by the names that /proc/cpuinfo has: each adds to the one before.
constexpr const char* kLevels[] = {
    "",
    "cx16 lahf_lm pni popcnt sse4_1 sse4_2 ssse3",
    "abm avx avx2 bmi1 bmi2 f16c fma movbe xsave",
    "avx512bw avx512cd avx512dq avx512f avx512vl",
};

[[maybe_unused]] std::string flags_here() {
  const auto text = read_whole("/proc/cpuinfo").value_or("");
  const auto line = text.find("\nflags");
  const auto start = std::min(text.find(':', line), text.size());
  return text_of("{} ", text.substr(start, text.find('\n', start) - start));
}

}  // namespace

const Processor& Processor::here() {
#if defined(__x86_64__)
  static const Processor found{"x86-64", flags_here()};
#elif defined(__aarch64__)
  static const Processor found{"aarch64", ""};
#elif defined(__riscv)
  static const Processor found{"riscv64", ""};
#else
  static const Processor found{"unknown", ""};
#endif
  return found;
}

bool Processor::has(std::string_view names) const {
  for (size_t start = 0; start < names.size();) {
    const auto end = std::min(names.find(' ', start), names.size());
    if (end > start &&
        flags.find(text_of(" {} ", names.substr(start, end - start))) == std::string::npos)
      return false;
    start = end + 1;
  }
  return true;
}

// Of x86-64, from 1.
int Processor::level() const {
  int level = 1;
  while (level < static_cast<int>(std::size(kLevels)) && has(kLevels[level]))
    ++level;
  return level;
}

bool Processor::runs(std::string_view name) const {
  if (!name.starts_with(architecture))
    return false;
  const auto rest = name.substr(architecture.size());
  if (rest.empty())
    return true;
  if (rest[0] == ':')
    return has(rest.substr(1));
  if (architecture != "x86-64" || rest.size() != 3 || !rest.starts_with("-v"))
    return false;
  return rest[2] >= '1' && rest[2] - '0' <= level();
}

std::string Processor::name() const {
  return architecture == "x86-64" ? text_of("{}-v{}", architecture, level()) : architecture;
}

}  // namespace tenon
