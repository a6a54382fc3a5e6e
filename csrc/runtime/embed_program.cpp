// What a program that embeds the runtime calls for exported programs: the last part of
// include/tenon.h.

#include <algorithm>
#include <cstdlib>

#include "runtime/embed.h"
#include "runtime/program.h"
#include "runtime/touched_memory.h"

using namespace tenon;

struct tenon_program {
  Program program;
  TakingTurns<std::string> facts;
};

namespace {

// The sizes of the structs as they were first: nobody has less.
constexpr size_t kOptions = offsetof(tenon_options, library);
constexpr size_t kTensor = offsetof(tenon_tensor, sizes) + sizeof(tenon_tensor::sizes);
constexpr size_t kInfo =
    offsetof(tenon_tensor_info, greatest) + sizeof(tenon_tensor_info::greatest);

void check_size(size_t size, size_t least, const char* name) {
  if (size < least || size > size_t{1} << 16)
    fail(
        ErrorKind::error,
        "set the field 'size' of each {} to sizeof({}): it is {}",
        name,
        name,
        size);
}

ProgramOptions options_of(const tenon_options* given) {
  tenon_options all{};
  if (given != nullptr) {
    check_size(given->size, kOptions, "tenon_options");
    std::memcpy(&all, given, std::min(given->size, sizeof(all)));
  }
  constexpr int32_t kMostThreads = 1024;
  if (all.threads < 0 || all.threads > kMostThreads)
    fail(ErrorKind::error, "from 0 to {} threads, and not {}", kMostThreads, all.threads);
  ProgramOptions options;
  if (all.library != nullptr)
    options.library = all.library;
  if (all.weights != nullptr)
    options.weights = all.weights;
  options.device = all.device;
  options.threads = static_cast<unsigned>(all.threads);
  options.commit_each = all.commit_each != 0;
  options.unchecked_weights = all.unchecked_weights != 0;
  options.products = all.products;
  return options;
}

// An array of structs that are as large as the caller's compiler made them.
template <class T, class Byte>
class Tensors {
 public:
  Tensors(T* first, size_t count, const char* name)
      : first_(reinterpret_cast<Byte*>(first)), count_(count) {
    if (count == 0)
      return;
    size_ = given(first, name).size;
    for (size_t k = 0; k < count; ++k) {
      check_size((*this)[k].size, kTensor, "tenon_tensor");
      if ((*this)[k].size != size_)
        fail(ErrorKind::error, "all tensors of a call have one 'size'");
    }
  }
  size_t count() const {
    return count_;
  }
  T& operator[](size_t k) const {
    return *reinterpret_cast<T*>(first_ + k * size_);
  }

 private:
  Byte* const first_;
  const size_t count_;
  size_t size_ = 0;
};
using Inputs = Tensors<const tenon_tensor, const char>;
using Outputs = Tensors<tenon_tensor, char>;

const Method& method_of(const tenon_program* of, size_t method) {
  const auto& program = given(of, "program");
  const auto& file = program.program.file();
  if (method >= file.names)
    fail(ErrorKind::out_of_range, "the program has {} methods, and no {}", file.names, method);
  return file.methods[method];
}

std::shared_ptr<const MethodPlan> plan_of(
    tenon_program* program, size_t method, const Inputs& inputs, const Outputs& outputs) {
  const auto& called = method_of(program, method);
  std::vector<GivenTensor> all(inputs.count());
  for (size_t k = 0; k < inputs.count(); ++k) {
    const auto& [size, data, nbytes, dtype, rank, sizes] = inputs[k];
    if (rank < 0 || rank > TENON_MOST_DIMENSIONS)
      fail(ErrorKind::error, "{}: input {} has {} dimensions", called.name, k, rank);
    // What is no dtype at all is none of the method's.
    const auto number = std::clamp<int32_t>(dtype, -1, static_cast<int32_t>(kNoDType));
    all[k] = {static_cast<DType>(number), {sizes, static_cast<size_t>(rank)}};
  }
  auto plan = program->program.plan(method, all);
  if (outputs.count() != called.outputs.size())
    fail(
        ErrorKind::error,
        "{} has {} outputs, and is given {}",
        called.name,
        called.outputs.size(),
        outputs.count());
  return plan;
}

void write_sizes(const TensorLayout& layout, tenon_tensor& tensor) {
  tensor.dtype = static_cast<int32_t>(layout.dtype);
  tensor.rank = static_cast<int32_t>(layout.sizes.size());
  std::copy(layout.sizes.begin(), layout.sizes.end(), tensor.sizes);
}

void check_bytes(
    const tenon_tensor& tensor,
    size_t least,
    const Method& method,
    const SizedTensor& expected,
    const char* what) {
  if (tensor.nbytes < least || (tensor.data == nullptr && least > 0))
    fail(
        ErrorKind::error,
        "{}: {} '{}' takes {} bytes, and there are {}",
        method.name,
        what,
        expected.name,
        least,
        tensor.data == nullptr ? 0 : tensor.nbytes);
}

void run(tenon_program* program, size_t number, const Inputs& inputs, const Outputs& outputs) {
  const auto plan = plan_of(program, number, inputs, outputs);
  const auto& method = method_of(program, number);
  std::vector<const void*> in(inputs.count());
  std::vector<void*> out(outputs.count());
  std::vector<std::shared_ptr<void>> aligned;  // copies of what is not
  TouchedMemory read, written;
  for (size_t k = 0; k < inputs.count(); ++k) {
    const auto nbytes = plan->inputs[k].nbytes;
    check_bytes(inputs[k], nbytes, method, method.inputs[k], "input");
    read.add(inputs[k].data, nbytes);
    in[k] = inputs[k].data;
    if (!is_aligned(in[k], plan->inputs[k].dtype) && nbytes > 0) {
      in[k] = aligned.emplace_back(aligned_memory(nbytes)).get();
      std::memcpy(const_cast<void*>(in[k]), inputs[k].data, nbytes);
    }
  }
  struct Free {
    void operator()(void* memory) const {
      std::free(memory);
    }
  };
  std::vector<std::unique_ptr<void, Free>> made(outputs.count());
  for (size_t k = 0; k < outputs.count(); ++k) {
    const auto& layout = plan->outputs[k];
    auto* const data = outputs[k].data;
    if (data != nullptr)
      check_bytes(outputs[k], layout.nbytes, method, method.outputs[k], "output");
    if (written.overlaps(data, layout.nbytes))
      fail(
          ErrorKind::error,
          "{}: output '{}' overlaps another output",
          method.name,
          method.outputs[k].name);
    written.add(data, layout.nbytes);
    // An input is read until the run is over.
    const bool is_given =
        data != nullptr && is_aligned(data, layout.dtype) && !read.overlaps(data, layout.nbytes);
    if (!is_given)
      made[k].reset(make_memory(layout.nbytes));
    out[k] = is_given ? data : made[k].get();
  }
  program->program.run(*plan, in, out);
  for (size_t k = 0; k < outputs.count(); ++k) {
    const auto& layout = plan->outputs[k];
    write_sizes(layout, outputs[k]);
    if (made[k] == nullptr)
      continue;
    if (outputs[k].data != nullptr) {
      std::memcpy(outputs[k].data, made[k].get(), layout.nbytes);
    } else {
      outputs[k].data = made[k].release();
      outputs[k].nbytes = layout.nbytes;
    }
  }
}

void describe(
    const Method& method,
    std::vector<SizedTensor> Method::* kind,
    size_t which,
    tenon_tensor_info* info,
    const char* what) {
  check_size(given(info, "info").size, kInfo, "tenon_tensor_info");
  const auto& tensors = method.*kind;
  if (which >= tensors.size())
    fail(
        ErrorKind::out_of_range,
        "{} has {} {}s, and no {}",
        method.name,
        tensors.size(),
        what,
        which);
  const auto& tensor = tensors[which];
  info->name = tensor.name.c_str();
  info->dtype = static_cast<int32_t>(tensor.dtype);
  info->rank = static_cast<int32_t>(tensor.sizes.size());
  for (size_t d = 0; d < tensor.sizes.size(); ++d) {
    auto [least, greatest] = *bounds_of(tensor.sizes[d], method.symbols);
    for (const auto* form : method.forms) {
      const auto others = *bounds_of((form->*kind)[which].sizes[d], form->symbols);
      least = std::min(least, others.least);
      greatest = std::max(greatest, others.greatest);
    }
    info->least[d] = std::max<int64_t>(least, 0);
    info->greatest[d] = std::max<int64_t>(greatest, 0);
  }
}

}  // namespace

extern "C" {

int32_t tenon_open_program(
    const char* path, const tenon_options* options, tenon_program** found, tenon_status* status) {
  return told(status, [&] {
    given(found, "found");
    given(path, "path");
    *found = new tenon_program{{path, options_of(options)}};
  });
}

void tenon_close_program(tenon_program* program) {
  delete program;
}

size_t tenon_method_count(const tenon_program* program) {
  return program != nullptr ? program->program.file().names : 0;
}

const char* tenon_method_name(const tenon_program* program, size_t method) {
  if (method >= tenon_method_count(program))
    return nullptr;
  return program->program.file().methods[method].name.c_str();
}

size_t tenon_program_inputs(const tenon_program* program, size_t method) {
  if (method >= tenon_method_count(program))
    return 0;
  return program->program.file().methods[method].inputs.size();
}

size_t tenon_program_outputs(const tenon_program* program, size_t method) {
  if (method >= tenon_method_count(program))
    return 0;
  return program->program.file().methods[method].outputs.size();
}

int32_t tenon_describe_input(
    const tenon_program* program,
    size_t method,
    size_t input,
    tenon_tensor_info* info,
    tenon_status* status) {
  return told(status, [&] {
    const auto& found = method_of(program, method);
    describe(found, &Method::inputs, input, info, "input");
  });
}

int32_t tenon_describe_output(
    const tenon_program* program,
    size_t method,
    size_t output,
    tenon_tensor_info* info,
    tenon_status* status) {
  return told(status, [&] {
    const auto& found = method_of(program, method);
    describe(found, &Method::outputs, output, info, "output");
  });
}

int32_t tenon_output_sizes(
    tenon_program* program,
    size_t method,
    const tenon_tensor* inputs,
    size_t input_count,
    tenon_tensor* outputs,
    size_t output_count,
    tenon_status* status) {
  return told(status, [&] {
    const Outputs all(outputs, output_count, "outputs");
    const auto plan = plan_of(program, method, {inputs, input_count, "inputs"}, all);
    for (size_t k = 0; k < output_count; ++k) {
      write_sizes(plan->outputs[k], all[k]);
      all[k].nbytes = plan->outputs[k].nbytes;
    }
  });
}

int32_t tenon_run(
    tenon_program* program,
    size_t method,
    const tenon_tensor* inputs,
    size_t input_count,
    tenon_tensor* outputs,
    size_t output_count,
    tenon_status* status) {
  return told(status, [&] {
    run(program, method, {inputs, input_count, "inputs"}, {outputs, output_count, "outputs"});
  });
}

void tenon_free(void* data) {
  std::free(data);
}

int32_t tenon_reset(tenon_program* program, tenon_status* status) {
  return told(status, [&] { given(program, "program").program.reset(); });
}

const char* tenon_program_json(tenon_program* program) {
  if (program == nullptr)
    return nullptr;
  return program->facts.use([&](std::string& facts) {
    facts = program->program.facts();
    return facts.c_str();
  });
}

}  // extern "C"
