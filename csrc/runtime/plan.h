// A plan: a program's kernels and calls, in order, over slots of memory.
//
// It is for one set of sizes, or for any, where some of its numbers are expressions of symbols.
// Running it (runtime/run.h) changes nothing of it, so several threads may run one at once.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "runtime/queue.h"
#include "runtime/value.h"

namespace tenon {

// Truths, a byte each: they take less code than bits.
using Flags = std::vector<uint8_t>;

// A tensor over a slot; its offset is from the slot's start.
struct SlotTensor {
  size_t slot = 0;
  TensorLayout layout;
};

struct Slot {
  enum class Kind : int {
    input,      // memory that the caller passes
    output,     // memory that the caller passes, or that is allocated for it
    temporary,  // lies in the arena
    block,      // a temporary with memory of its own, from its first step to its last
    external,   // memory that comes with the result of a call
    constant,   // memory of a tensor that the plan holds
    unused
  };
  Kind kind = Kind::unused;
  size_t number = 0;  // output, block: bytes; temporary: offset in bytes; constant: which one
  size_t nbytes = 0;  // input, temporary, external: bytes that steps use
};

// A tensor without gaps that a plan holds, in memory of the host.
struct Constant {
  TensorLayout layout;
  void* data = nullptr;
  std::shared_ptr<void> keeper;  // of the memory
};

// What a kernel's code lies in, such as a shared object. It is closed when the last one goes that
// holds it: a plan, for each of its kernels.
class KernelOwner {
 public:
  virtual ~KernelOwner() = default;
  virtual size_t nbytes() const = 0;
};

// Where a kernel is found again: its name in a file of the cache directory.
struct KernelName {
  std::string object, symbol;
  uint64_t checksum = 0;  // of the file
};

struct KernelStep {
  KernelFunction function = nullptr;
  size_t kernel = 0;           // which of the plan's
  std::vector<size_t> slots;   // of its pointers
  std::vector<int64_t> sizes;  // the numbers that it takes, then those of its shape
  // How many of the last ones are its grid, its group, and bytes of scratch memory (0 or 1).
  size_t grid = 0, group = 0, scratch = 0;
  // By check: the recorded calls that fail with it, counted in their window; -1 for no such call.
  std::vector<std::vector<int32_t>> checks;
};

// A call of an op on host tensors over slots.
struct CallStep {
  // Computes it: where its tensors and results lie, in their order. A result that nobody wants is
  // null. Raises where it takes no such arguments.
  using Function = void (*)(
      const CallStep& step, std::span<void* const> tensors, std::span<void* const> results);

  std::string op;                   // its name and overload, on a line each
  std::vector<Argument> arguments;  // in the schema's order
  std::vector<SlotTensor> tensors;  // of the arguments; a number is a tensor without dimensions
  // What becomes of each result: an external slot takes over its memory, any other one a copy.
  std::vector<std::optional<SlotTensor>> results;
  std::string route, counted;  // how it is counted
  int32_t call = -1;  // the recorded call that it is part of, counted in the window; -1 for none

  // What follows is no data: it is found once the step was read.
  Flags written;                // by tensor: does the call write it?
  bool on_host = false;         // it may not run in the queue of a device
  Function function = nullptr;  // of an exported program
  std::shared_ptr<const void> resolved;
};

// What a profile has of a step, at any sizes.
struct StepFacts {
  std::string detail;  // with a `?` for each of `sizes`
  std::vector<SizeExpression> sizes;
  std::vector<int32_t> calls;
  SizeExpression bytes, operations;
};

struct Step {
  std::string name;  // the ops that it came from
  std::shared_ptr<const StepFacts> facts;
  std::variant<KernelStep, CallStep> work;
  std::vector<size_t> allocated;  // outputs and blocks that no step used before
  std::vector<size_t> released;   // inputs, blocks and external slots that no later step uses
};

struct PlanData {
  std::vector<Slot> slots;
  std::vector<size_t> inputs, outputs;  // slots, in the order that callers pass them
  size_t arena_bytes = 0;
  std::vector<Step> steps;
  std::vector<SlotTensor> results;
  std::vector<Constant> constants;
  std::vector<KernelName> kernels;                   // empty where they are in no file
  std::vector<std::shared_ptr<KernelOwner>> owners;  // of the kernels; some live as long as we do
};

// A number of a plan that is not the same for all sizes, and where it stands.
struct SizedNumber {
  enum class Where : uint8_t {
    slot,      // its number
    kernel,    // one of the numbers that the kernel of a step takes
    tensor,    // of a call: its layout's size, stride or offset
    result,    // as well
    argument,  // a constant of a call, a whole number or one of a list
    bytes,     // of a slot
  } where = Where::slot;
  size_t index = 0;  // which slot or step
  size_t which = 0;  // which number, tensor, result or argument
  enum class Field : uint8_t { size, stride, offset } field = Field::size;
  size_t at = 0;  // which dimension, or element of a list
  SizeExpression value;
};

// Gives a plan the numbers for these symbols; false where one of them cannot be.
bool give_sizes(
    PlanData& plan, const std::vector<SizedNumber>& numbers, std::span<const int64_t> symbols);

}  // namespace tenon
