// A loaded program: an exported model that runs without Python and PyTorch.
#pragma once

#include <atomic>
#include <thread>

#include "runtime/program_runner.h"
#include "runtime/program_sizes.h"
#include "runtime/threads.h"

namespace tenon {

struct ProgramOptions {
  std::optional<std::string_view> bytes;  // of the program, in memory that stays; none: its path's
  std::optional<std::string> library;     // of a target; none: this processor
  std::optional<std::string> weights;     // the path of the weight file
  int32_t device = 0;
  unsigned threads = 0;  // 0: the processors that this process may use
  bool commit_each = false;
  bool unchecked_weights = false;
  const tenon_products_t* products = nullptr;  // nullptr: its code multiplies
};

class Program final : Forked {
 public:
  // Raises where the file is no program, or this processor or device does not run it.
  Program(const std::string& path, const ProgramOptions& options);
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  const ProgramFile& file() const {
    return file_;
  }
  // Raises where no form of a method takes inputs of such sizes.
  std::shared_ptr<const MethodPlan> plan(size_t method, std::span<const GivenTensor> inputs);
  // Memory of the host for each input and output, aligned to the elements. Any thread may run it.
  void run(
      const MethodPlan& plan, std::span<const void* const> inputs, std::span<void* const> outputs);
  // The state becomes what it was first.
  void reset();
  // JSON: include/tenon.h has the names.
  std::string facts() const;

 private:
  class StateLock;
  void in_child() override;
  void load_kernels(const tenon_products_t* products);

  ProgramFile file_;
  ThreadPool pool_;
  const Code* code_ = nullptr;
  std::shared_ptr<TargetLibrary> library_;
  std::unique_ptr<ProgramRunner> runner_;
  std::vector<MethodPlans> plans_;        // by method, each form by itself
  std::atomic<size_t> planned_bytes_{0};  // of the last run
  std::mutex state_mutex_;  // of runs that may change it; not of forks: a child has a new one
  std::atomic<std::thread::id> changes_state_{};  // which thread has it
  const char* half_changed_by_ = nullptr;         // what left the state so; null: it is whole
};

}  // namespace tenon
