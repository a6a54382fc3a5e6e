// Plans and windows as plain data: docs/plan-file.md has the format.
//
// A plan file is named after the structure that it serves, and after everything else that the plan
// depends on. What is damaged, or not for this process, is as good as not there.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "windows/plan_store.h"

namespace tenon {

// Where files are kept, and what all of them depend on: versions, target, processor, compiler.
// Without it nothing is kept.
void set_plan_directory(std::string directory, std::string identity);

struct LoadedKernel {
  uintptr_t address = 0;
  std::shared_ptr<KernelOwner> owner;
};

// How the target gets at kernels that another process compiled.
struct KernelFiles {
  // The kernel of that name in the file that has this checksum. Without an address where it is not
  // to be had, or the file is another one.
  std::function<LoadedKernel(
      const std::string& path, const std::string& symbol, uint64_t file_checksum)>
      load;
  // Takes over what the target's backend added to a plan with these kernels; false: it is of no use
  // here.
  std::function<bool(std::string_view extras, c10::ArrayRef<LoadedKernel> kernels)> adopt;
};
void set_kernel_files(KernelFiles files);

// Of ops that are neither PyTorch's nor ours (record/op_rules.h). What another process has to know
// of one before it can make or take over a plan for its windows. Nothing where it cannot be told.
// Called once, at import.
using DescribeOp = std::function<std::optional<std::string>(const std::string& op)>;
void set_describe_op(DescribeOp describe);

// What tells windows of one plan in any process. Calls, how their slots connect, which of these are
// new and which outlive the window. Where sizes are symbols, what is claimed of them. Then there is
// an example beside it: a window with sizes.
struct Structure {
  std::string key, example;
};
// The key is empty where a call has an argument that is no plain data. It is, too, where another
// process cannot know what has to be known of an op.
Structure structure_of(const WindowPlan& window);
// The same for who reads it in this process, whatever ops there are.
Structure structure_here(const WindowPlan& window);
// A window of that structure. Raises where that is none.
std::shared_ptr<WindowPlan> window_of(const Structure& structure);

// The claims of plans that are kept for windows which differ from this one in sizes alone.
std::vector<SizeClaim> kept_claims(const WindowPlan& window);

// Gives a window the plan that is kept for it, or the reason why it has none; false: neither is.
bool find_kept(WindowPlan& window);
// Keeps what a window ended with, for other processes; false where that is not possible. `plan`:
// the bytes of its plan.
bool keep(const WindowPlan& window, const std::string& plan);

}  // namespace tenon
