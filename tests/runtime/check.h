// What the runtime's tests are written with: they need the C++ library alone.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "runtime/error.h"

namespace tests {

struct Test {
  const char* name;
  void (*run)();
};

inline std::vector<Test>& all() {
  static std::vector<Test> tests;
  return tests;
}

struct Register {
  Register(const char* name, void (*run)()) {
    all().push_back({name, run});
  }
};

inline const char* argument = nullptr;  // the second of the program, if there is one

[[noreturn]] inline void failed(const char* file, int line, const std::string& what) {
  std::fprintf(stderr, "%s:%d: %s\n", file, line, what.c_str());
  std::exit(1);
}

// What an error says; empty where there is none.
inline std::string error_of(const std::function<void()>& run) {
  try {
    run();
  } catch (const tenon::Error& error) {
    return error.what();
  }
  return {};
}

}  // namespace tests

#define TEST(name)                                             \
  static void name();                                          \
  static const tests::Register registered_##name(#name, name); \
  static void name()

#define CHECK(...)                                                          \
  do {                                                                      \
    if (!(__VA_ARGS__))                                                     \
      tests::failed(__FILE__, __LINE__, "it does not hold: " #__VA_ARGS__); \
  } while (false)

#define CHECK_RAISES(text, ...)                                                            \
  do {                                                                                     \
    const auto said = tests::error_of([&] { __VA_ARGS__; });                               \
    if (said.find(text) == std::string::npos)                                              \
      tests::failed(__FILE__, __LINE__, "the error is '" + said + "', and no '" text "'"); \
  } while (false)
