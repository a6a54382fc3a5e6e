// What this processor is, and which kernels it runs.
#pragma once

#include <string>
#include <string_view>

namespace tenon {

struct Processor {
  std::string architecture;  // "x86-64", "aarch64", "riscv64"
  std::string flags;         // of /proc/cpuinfo, on x86-64, each between spaces

  static const Processor& here();
  // Whether it runs code for that processor, by the names of docs/program-file.md.
  bool runs(std::string_view name) const;
  // Whether it has all of these flags, which are separated by spaces.
  bool has(std::string_view names) const;
  // For people: the best level that it has.
  std::string name() const;

 private:
  int level() const;
};

}  // namespace tenon
