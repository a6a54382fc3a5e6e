#include "block.h"

#include <omp.h>

#include <cstdio>
#include <cstdlib>

namespace tenon_onednn {
namespace {

using dnnl::memory;
using tag = memory::format_tag;
constexpr size_t kAlignment = 64;

dnnl::primitive_attr attributes() {
  dnnl::primitive_attr found;
  found.set_scratchpad_mode(dnnl::scratchpad_mode::user);  // threads share a primitive
  found.set_fpmath_mode(dnnl::fpmath_mode::strict);
  return found;
}

[[noreturn]] void give_up(const char* what) {
  std::fprintf(stderr, "libtenon_onednn: %s\n", what);
  std::abort();
}

// Memory for a thread, which lets go of it when it ends.
struct Room {
  void* start = nullptr;
  size_t nbytes = 0;
  ~Room() {
    std::free(start);
  }
};

}  // namespace

OneThread::OneThread() : before_(omp_get_max_threads()) {
  omp_set_num_threads(1);
}

OneThread::~OneThread() {
  omp_set_num_threads(before_);
}

const dnnl::engine& engine() {
  static const auto& found = *new dnnl::engine(dnnl::engine::kind::cpu, 0);
  return found;
}

bool has_bfloat16() {
  constexpr auto kWanted = static_cast<unsigned>(dnnl::cpu_isa::avx512_core_bf16);
  return (static_cast<unsigned>(dnnl::get_effective_cpu_isa()) & kWanted) == kWanted;
}

void* room(int number, size_t nbytes) {
  static thread_local Room rooms[2];
  auto& [start, has] = rooms[number];
  if (has < nbytes) {
    std::free(start);
    has = (nbytes + kAlignment - 1) / kAlignment * kAlignment;
    start = std::aligned_alloc(kAlignment, has);
    if (start == nullptr)
      give_up("out of memory");
  }
  return start;
}

template <class Made>
std::optional<Block> Block::of(const Made& made) {
  Block block;
  block.name_ = made.impl_info_str();
  // What has no name of generated code is oneDNN's reference.
  if (block.name_.find("brg") != 0 && block.name_.find("jit") == std::string::npos)
    return std::nullopt;
  block.source_ = made.src_desc();
  block.weights_ = made.weights_desc();
  block.result_ = made.dst_desc();
  block.scratchpad_ = made.scratchpad_desc();
  block.primitive_ = dnnl::primitive(made);
  return block;
}

std::optional<Block> Block::product(const ProductFacts& f) {
  const OneThread one;
  const auto matrix = [&](int64_t rows, int64_t columns, int64_t down, int64_t across) {
    return memory::desc({rows, columns}, f.dtype, memory::dims{down, across});
  };
  try {
    const dnnl::matmul::desc described(
        matrix(f.m, f.k, f.a_strides[0], f.a_strides[1]),
        matrix(f.k, f.n, f.b_strides[0], f.b_strides[1]),
        matrix(f.m, f.n, f.c_step, 1));
    const dnnl::matmul::primitive_desc made(described, attributes(), engine(), true);
    return made ? of(made) : std::nullopt;
  } catch (const dnnl::error&) {
    return std::nullopt;
  }
}

std::optional<Block> Block::convolution(const ConvolutionFacts& f, const memory::desc* weights) {
  const OneThread one;
  constexpr auto kFloat = memory::data_type::f32;
  try {
    const memory::dims image{1, f.channels, f.image[0], f.image[1]};
    const memory::desc source(
        image, kFloat, memory::dims{f.image[0] * f.step[0], 1, f.step[0], f.step[1]});
    const memory::desc any({f.columns, f.channels, f.kernel[0], f.kernel[1]}, kFloat, tag::any);
    const memory::desc result({1, f.columns, f.places[0], f.places[1]}, kFloat, tag::nhwc);
    const dnnl::convolution_forward::desc described(
        dnnl::prop_kind::forward_inference,
        dnnl::algorithm::convolution_direct,
        source,
        weights != nullptr ? *weights : any,
        result,
        {f.stride[0], f.stride[1]},
        {f.dilation[0] - 1, f.dilation[1] - 1},
        {f.before[0], f.before[1]},
        {f.after[0], f.after[1]});
    const dnnl::convolution_forward::primitive_desc made(described, attributes(), engine(), true);
    return made ? of(made) : std::nullopt;
  } catch (const dnnl::error&) {
    return std::nullopt;
  }
}

void Block::run(const void* source, const void* weights, void* result) const {
  static thread_local const dnnl::stream stream(engine());
  const auto at = [](const memory::desc& desc, const void* start) {
    return memory(desc, engine(), const_cast<void*>(start));
  };
  try {
    const size_t scratch = scratchpad_.get_size();
    const auto from = at(source_, source), by = at(weights_, weights), to = at(result_, result),
               own = at(scratchpad_, scratch > 0 ? room(1, scratch) : nullptr);
    const dnnl_exec_arg_t all[] = {
        {DNNL_ARG_SRC, from.get()},
        {DNNL_ARG_WEIGHTS, by.get()},
        {DNNL_ARG_DST, to.get()},
        {DNNL_ARG_SCRATCHPAD, own.get()}};
    if (dnnl_primitive_execute(primitive_.get(), stream.get(), 4, all) == dnnl_success)
      return;
  } catch (const dnnl::error&) {
  }
  give_up("oneDNN failed, in a run of what it had prepared");
}

}  // namespace tenon_onednn
