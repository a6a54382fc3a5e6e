// Programs for the tests, in the bytes that Python writes.
#pragma once

#include "plans.h"
#include "runtime/program_file.h"

namespace tests {

using tenon::SizeExpression;

// What is to be written.
struct ProgramDraft {
  struct State {
    std::string name;
    std::vector<int64_t> sizes;
    int64_t weight = -1;
  };
  struct Weight {
    std::string name;
    std::vector<float> values;
  };
  struct Method {
    std::string name;
    std::vector<tenon::Symbol> symbols{};
    std::vector<tenon::SizedTensor> inputs{}, outputs{};
    std::vector<tenon::Source> plan_inputs{};
    std::vector<size_t> plan_outputs{};
    std::vector<tenon::OutputCopy> copies{};
    std::vector<tenon::SizeCheck> checks{};
    Draft plan{};
  };
  struct Code {
    std::string processor, bytes;
  };

  std::string target = "cpu";
  std::string weight_file;
  int64_t block = 64;
  std::vector<Weight> weights;
  std::vector<State> states;
  std::vector<Code> codes;
  std::vector<Method> methods;

  std::string bytes() const;
  // What lies in the weight file.
  std::string bytes_of_weight_file() const;
};

SizeExpression constant(int64_t number);
SizeExpression symbol(int64_t number);

// With a head that is whole: its checksum is set anew.
std::string with_checksum(std::string file);

// The folder that this test lies in, with a slash behind it.
std::string folder_of_this();

// A file that is gone with this object.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& bytes, const std::string& name = "program.tenon");
  ~TemporaryFile();
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  void write(const std::string& bytes) const;

  std::string folder, path;
};

// Methods over a weight `w` of 4 floats and a state `sum` of as many:
//   scale(x [rows, 4]) -> x * w + 3 * rows, and w itself; 2 <= rows <= 100, rows != 13
//   accumulate(x [4]) -> sum, after x was added to it, and the same as a copy of the state
//   spread(x [n]) -> n at each place, and x
//   most_threads() -> int64
ProgramDraft example_program();

// Without kernels: the sorted values and the places of 8 floats.
ProgramDraft sorting_program();

}  // namespace tests
