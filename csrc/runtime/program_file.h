// A program's file: what an exported model is made of. docs/program-file.md has the format.
#pragma once

#include "runtime/mapped_file.h"
#include "runtime/plan_format.h"
#include "tenon.h"

namespace tenon {

class ThreadPool;

// A dense tensor of a name.
struct NamedTensor {
  std::string name;
  TensorLayout layout;
};

struct Weight {
  NamedTensor tensor;
  int64_t offset = 0;  // from where the weights begin
};

struct ProgramState {
  NamedTensor tensor;
  int64_t weight = -1;  // which one it begins as; -1: zeros
};

// The kernels for one processor, where they lie in the file.
constexpr std::string_view kSource = "source";  // instead of a processor

struct Code {
  std::string processor;
  int64_t begin = 0, nbytes = 0;
  uint64_t checksum = 0;
};

// A number that a method's sizes are made of.
struct Symbol {
  static constexpr int64_t kNoBound = TENON_NO_BOUND;
  std::string name;
  int64_t least = 0, greatest = kNoBound;
  // In the symbols before it, within the bounds if the method's checks hold; without words: it is a
  // size of an input.
  SizeExpression value{};
};

// An input or output of a method.
struct SizedTensor {
  std::string name;
  DType dtype = kNoDType;
  std::vector<SizeExpression> sizes;
};

// A tensor of a program, or of one of its methods.
struct Source {
  enum class Kind : int { input, weight, state, symbol, output };
  Kind kind = Kind::input;
  size_t number = 0;
};

// An output that has the bytes of something else, as they are after the run.
struct OutputCopy {
  size_t output = 0;
  Source source;
};

// What holds of a method's symbols in every call.
struct SizeCheck {
  enum class Comparison : int { equal, not_equal, at_most, less };
  SizeExpression left;
  Comparison comparison = Comparison::equal;
  SizeExpression right;
};

// Methods of one name are forms of one method, for other sizes.
struct Method {
  // Where a symbol is found: in which input, at which dimension.
  struct Found {
    size_t input = 0, dimension = 0;
  };
  std::string name;
  std::vector<Symbol> symbols;
  std::vector<SizedTensor> inputs, outputs;
  std::vector<Source> plan_inputs;
  std::vector<size_t> plan_outputs;
  std::vector<OutputCopy> copies;
  std::vector<SizeCheck> checks;
  std::vector<Found> found;  // by symbol; those that are computed come behind
  std::string_view plan_bytes;
  PlanOfAnySize plan;                                // whose kernels have no functions yet
  std::vector<KernelFunction> functions;             // of its kernels, once they are loaded
  std::vector<std::shared_ptr<KernelOwner>> owners;  // of these
  std::vector<const Method*> forms;                  // of the first one of a name: the others
};

class ProgramFile {
 public:
  // Reads a file, or its bytes where these lie in memory already and stay there, and checks all of
  // it. `weights`: the path of the weight file. Raises where anything does not fit together. The
  // weights' checksums are left to `check_weights`.
  ProgramFile(
      const std::string& path,
      std::optional<std::string_view> bytes,
      const std::optional<std::string>& weights);

  const std::string& path() const {
    return file_.path();
  }
  std::string_view code(const Code& code) const {
    return file_.bytes().substr(static_cast<size_t>(code.begin), static_cast<size_t>(code.nbytes));
  }
  // The source that a kernel names by its number among the codes; null: it names none.
  const Code* source_of(const KernelName& kernel) const;
  std::string_view weights() const {
    return weights_;
  }
  std::string_view bytes_of(const Weight& weight) const {
    return weights_.substr(static_cast<size_t>(weight.offset), weight.tensor.layout.nbytes);
  }
  // Compares the weights with their checksums. Raises where they are others.
  void check_weights(ThreadPool& pool) const;

  std::string producer, target;
  std::vector<Weight> weight_list;
  std::vector<ProgramState> state_list;
  std::vector<Code> codes;
  std::vector<Method> methods;
  size_t names = 0;  // of methods: so many are first ones, and the forms of these come behind them

 private:
  void read_head();
  void check_sections(size_t end_of_head) const;
  void check_tensors() const;
  void find_forms();
  void map_weights(const std::optional<std::string>& path);

  const MappedFile file_;
  std::optional<MappedFile> weight_file_;
  std::string weight_file_name_;
  int64_t weights_begin_ = 0, weights_bytes_ = 0, block_bytes_ = 0;
  std::vector<uint64_t> block_checks_;
  std::string_view weights_;
};

// A checksum of a block of weights, which many words at once go into.
uint64_t block_checksum(std::string_view bytes);

// Raises where a method's parts do not fit together, or refer to what the program has not. Finds
// its symbols.
void check_method(Method& method, const ProgramFile& file);

}  // namespace tenon
