#include "programs.h"

#include <unistd.h>

#include <fstream>

#include "check.h"
#include "runtime/archive.h"

namespace tests {

using namespace tenon;

namespace {

constexpr size_t kHead = 32;

std::string little_endian(uint64_t number) {
  std::string bytes;
  for (int k = 0; k < 8; ++k)
    bytes.push_back(static_cast<char>(number >> 8 * k));
  return bytes;
}

size_t rounded(size_t number, size_t to) {
  return (number + to - 1) / to * to;
}

// All weights, each at a multiple of 64.
std::string section_of(const std::vector<ProgramDraft::Weight>& weights) {
  std::string bytes;
  for (const auto& [name, values] : weights) {
    bytes.resize(rounded(bytes.size(), 64));
    bytes.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  }
  return bytes;
}

std::string weight_file_head() {
  const std::string head = "{\"w\": {}}  ";
  return little_endian(head.size()) + head;
}

void put(Writer& out, const std::vector<SizedTensor>& tensors) {
  out(tensors.size());
  for (const auto& tensor : tensors)
    out(tensor.name, tensor.dtype, tensor.sizes);
}

void put(Writer& out, const ProgramDraft::Method& method) {
  out(method.name, method.symbols.size());
  for (const auto& symbol : method.symbols)
    out(symbol.name, symbol.least, symbol.greatest, symbol.value);
  put(out, method.inputs);
  put(out, method.outputs);
  out(method.plan_inputs.size());
  for (const auto& source : method.plan_inputs)
    out(source.kind, source.number);
  out(method.plan_outputs, method.copies.size());
  for (const auto& [output, source] : method.copies)
    out(output, source.kind, source.number);
  out(method.checks.size());
  for (const auto& check : method.checks)
    out(check.left, check.comparison, check.right);
  out(std::string("{}"), method.plan.bytes());
}

// The head of a file whose sections begin behind so many bytes, and where the last one ends.
std::string head_of(const ProgramDraft& draft, size_t before, size_t& code_begin, size_t& begin) {
  const auto section = section_of(draft.weights);
  Writer out;
  code_begin = rounded(kHead + before, 64);
  size_t end = kHead + before;
  auto next = code_begin;
  for (const auto& code : draft.codes) {
    end = next + code.bytes.size();
    next = rounded(end, 64);
  }
  begin = draft.weight_file.empty() ? rounded(end, 4096) : weight_file_head().size();
  out(std::string("the tests"), draft.target, draft.weight_file);
  out(begin, section.size(), draft.block);
  std::vector<uint64_t> checks;
  const auto block = static_cast<size_t>(draft.block);
  for (size_t k = 0; k < section.size(); k += block)
    checks.push_back(block_checksum(std::string_view(section).substr(k, block)));
  out(checks, draft.weights.size());
  size_t offset = 0;
  for (const auto& [name, values] : draft.weights) {
    offset = rounded(offset, 64);
    out(name, DType{6}, std::vector<size_t>{values.size()}, offset);
    offset += values.size() * sizeof(float);
  }
  out(draft.states.size());
  for (const auto& state : draft.states)
    out(state.name, DType{6}, state.sizes, state.weight);
  out(draft.codes.size());
  next = code_begin;
  for (const auto& code : draft.codes) {
    out(code.processor, next, code.bytes.size(), checksum(code.bytes));
    next = rounded(next + code.bytes.size(), 64);
  }
  out(draft.methods.size());
  for (const auto& method : draft.methods)
    put(out, method);
  return std::move(out.bytes);
}

}  // namespace

std::string ProgramDraft::bytes() const {
  // Offsets are as long as they are large: until they fit.
  std::string head;
  size_t code_begin = 0, weights_begin = 0;
  for (size_t length = 1; head.size() != length;) {
    length = head.size();
    head = head_of(*this, length, code_begin, weights_begin);
  }
  auto file = "tenon program 2\n" + little_endian(head.size()) + little_endian(0) + head;
  for (const auto& code : codes) {
    file.resize(rounded(file.size(), 64));
    file += code.bytes;
  }
  const auto section = section_of(weights);
  if (weight_file.empty() && !section.empty()) {
    file.resize(weights_begin);
    file += section;
  }
  return with_checksum(file);
}

std::string ProgramDraft::bytes_of_weight_file() const {
  return weight_file_head() + section_of(weights);
}

SizeExpression constant(int64_t number) {
  return SizeExpression::of(SizeExpression::constant, number);
}

SizeExpression symbol(int64_t number) {
  return SizeExpression::of(SizeExpression::symbol, number);
}

std::string with_checksum(std::string file) {
  uint64_t length = 0;
  std::memcpy(&length, file.data() + 16, sizeof(length));
  const auto head = std::string_view(file).substr(kHead, length);
  return file.replace(24, 8, little_endian(checksum(head)));
}

std::string folder_of_this() {
  char path[4096] = {};
  CHECK(readlink("/proc/self/exe", path, sizeof(path) - 1) > 0);
  const std::string found = path;
  return found.substr(0, found.rfind('/') + 1);
}

TemporaryFile::TemporaryFile(const std::string& bytes, const std::string& name) {
  std::string pattern = "/tmp/tenon-XXXXXX";
  CHECK(mkdtemp(pattern.data()) != nullptr);
  folder = pattern + "/";
  path = folder + name;
  write(bytes);
}

TemporaryFile::~TemporaryFile() {
  unlink(path.c_str());
  rmdir(folder.c_str());
}

// In place, as what is mapped of it is no more.
void TemporaryFile::write(const std::string& bytes) const {
  std::ofstream file(path, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  CHECK(file.good());
}

ProgramDraft example_program() {
  using Kind = Slot::Kind;
  using From = Source::Kind;
  using Where = SizedNumber::Where;
  const DType f32{6};
  ProgramDraft draft;
  draft.weights = {{"w", {1, 2, 3, 4}}, {"large", std::vector<float>(100, 5)}};
  draft.states = {{"sum", {4}, 0}, {"zeros", {4}}};
  draft.codes = {{"x86-64", *read_whole(folder_of_this() + "libprogram_kernels.so")}};
#ifndef __x86_64__
  draft.codes[0].processor = "aarch64";
#endif

  ProgramDraft::Method scale{"scale"};
  scale.symbols = {{"rows", 2, 100}};
  scale.inputs = {{"x", f32, {symbol(0), constant(4)}}};
  scale.outputs = {{"result", f32, {symbol(0), constant(4)}}, {"weight", f32, {constant(4)}}};
  scale.plan_inputs = {{From::input, 0}, {From::weight, 0}};
  scale.plan_outputs = {0};
  scale.copies = {{1, {From::weight, 0}}};
  scale.checks = {{symbol(0), SizeCheck::Comparison::not_equal, constant(13)}};
  const auto bytes = symbol(0).joined(SizeExpression::multiply, constant(16));
  const auto extra = symbol(0).joined(SizeExpression::multiply, constant(3));
  scale.plan.slots = {
      {Kind::input, 0, 32},
      {Kind::input, 0, 16},
      {Kind::block, 32},
      {Kind::output, 32},
      {Kind::constant, 0}};
  scale.plan.inputs = {0, 1};
  scale.plan.outputs = {3};
  scale.plan.constants = {{1, 1, 1, 1}};
  scale.plan.kernels = {{"", "scale", 0}};
  scale.plan.steps.push_back({Kernel{0, {0, 1, 2}, {2, 6}, {}}, {2}, {0}});
  scale.plan.steps.push_back({Kernel{0, {2, 4, 3}, {2, 0}, {}}, {3}, {2, 1}});
  scale.plan.numbers = {
      {Where::kernel, 0, 0, {}, 0, symbol(0)},
      {Where::kernel, 0, 1, {}, 0, extra},
      {Where::kernel, 1, 0, {}, 0, symbol(0)},
      {Where::bytes, 0, 0, {}, 0, bytes},
      {Where::slot, 2, 0, {}, 0, bytes},
      {Where::slot, 3, 0, {}, 0, bytes}};

  ProgramDraft::Method accumulate{"accumulate"};
  accumulate.inputs = {{"x", f32, {constant(4)}}};
  accumulate.outputs = {
      {"result", f32, {constant(4)}}, {"sum", f32, {constant(4)}}, {"again", f32, {constant(4)}}};
  accumulate.plan_inputs = {{From::state, 0}, {From::input, 0}};
  accumulate.plan_outputs = {0};
  accumulate.copies = {{1, {From::state, 0}}, {2, {From::output, 0}}};
  accumulate.plan.slots = {{Kind::input, 0, 16}, {Kind::input, 0, 16}, {Kind::output, 16}};
  accumulate.plan.inputs = {0, 1};
  accumulate.plan.outputs = {2};
  accumulate.plan.kernels = {{"", "accumulate", 0}};
  accumulate.plan.steps.push_back({Kernel{0, {0, 1, 2}, {4}, {{-1}}}, {2}, {0, 1}});

  ProgramDraft::Method spread{"spread"};
  const auto twice = symbol(0).joined(SizeExpression::multiply, constant(2));
  const auto lesser = symbol(0).joined(SizeExpression::minimum, twice);
  spread.symbols = {{"n"}, {"min(n, 2 * n)", 0, tenon::Symbol::kNoBound, lesser}};
  spread.inputs = {{"x", f32, {symbol(0)}}, {"y", f32, {symbol(0)}}};
  spread.outputs = {{"result", f32, {symbol(0)}}, {"x", f32, {symbol(0)}}};
  spread.plan_inputs = {{From::symbol, 0}};
  spread.plan_outputs = {0};
  spread.copies = {{1, {From::input, 0}}};
  spread.plan.slots = {{Kind::input, 0, 8}, {Kind::output, 0}};
  spread.plan.inputs = {0};
  spread.plan.outputs = {1};
  spread.plan.kernels = {{"", "spread", 0}};
  spread.plan.steps.push_back({Kernel{0, {0, 1}, {0}, {}}, {1}, {0}});
  spread.plan.numbers = {
      {Where::kernel, 0, 0, {}, 0, symbol(1)},
      {Where::slot, 1, 0, {}, 0, symbol(1).joined(SizeExpression::multiply, constant(4))}};

  ProgramDraft::Method most{"most_threads"};
  most.outputs = {{"count", DType{4}, {}}};
  most.plan_outputs = {0};
  most.plan.slots = {{Kind::output, 8}};
  most.plan.outputs = {0};
  most.plan.kernels = {{"", "most_threads", 0}};
  most.plan.steps.push_back({Kernel{0, {0}, {}, {}}, {0}, {}});

  draft.methods = {scale, accumulate, spread, most};
  return draft;
}

ProgramDraft sorting_program() {
  using Kind = Slot::Kind;
  ProgramDraft draft;
  ProgramDraft::Method sort{"sort"};
  sort.inputs = {{"x", DType{6}, {constant(8)}}};
  sort.outputs = {{"values", DType{6}, {constant(8)}}, {"places", DType{4}, {constant(8)}}};
  sort.plan_inputs = {{Source::Kind::input, 0}};
  sort.plan_outputs = {0, 1};
  sort.plan.slots = {{Kind::input, 0, 32}, {Kind::output, 32}, {Kind::output, 64}};
  sort.plan.inputs = {0};
  sort.plan.outputs = {1, 2};
  auto places = floats(2, 8);
  places.layout.dtype = DType{4};
  places.layout.nbytes = 64;
  const Call call{"aten::sort\n", {floats(0, 8)}, {floats(1, 8), places}, {-1, 0}};
  sort.plan.steps.push_back({call, {1, 2}, {}});
  draft.methods = {sort};
  return draft;
}

}  // namespace tests
