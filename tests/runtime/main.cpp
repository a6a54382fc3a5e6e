#include <cstring>

#include "check.h"

// Runs all tests, or those with the first argument in their names.
int main(int count, char** arguments) {
  tests::argument = count > 2 ? arguments[2] : nullptr;
  int run = 0;
  for (const auto& test : tests::all()) {
    if (count > 1 && std::strstr(test.name, arguments[1]) == nullptr)
      continue;
    std::printf("%s\n", test.name);
    std::fflush(stdout);
    test.run();
    ++run;
  }
  std::printf("%d passed\n", run);
  return run > 0 ? 0 : 1;
}
