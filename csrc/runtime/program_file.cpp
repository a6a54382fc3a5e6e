#include "runtime/program_file.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "runtime/keyed.h"

namespace tenon {
namespace {

constexpr std::string_view kFirstLine = "tenon program 2\n";
constexpr size_t kHead = 32;  // where the head begins
constexpr int64_t kLine = 64, kPage = 4096;

uint64_t word_at(std::string_view bytes, size_t offset) {
  std::array<uint8_t, sizeof(uint64_t)> found;
  std::memcpy(found.data(), bytes.data() + offset, found.size());
  uint64_t word = 0;
  for (size_t k = found.size(); k-- > 0;)
    word = word << 8 | found[k];
  return word;
}

// Memory has no end before 2^62, so sums of two such numbers fit.
bool lies_within(int64_t begin, int64_t nbytes, int64_t end) {
  return begin >= 0 && nbytes >= 0 && begin <= end && nbytes <= end - begin;
}

// The name of a file, and no way to another folder.
bool is_file_name(const std::string& name) {
  return name != "." && name != ".." && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

void check_layout(NamedTensor& tensor, const char* what) {
  auto& layout = tensor.layout;
  auto strides = dense_strides(layout.sizes);
  check_data(strides.has_value(), "{} '{}' is too large", what, tensor.name);
  layout.strides = std::move(*strides);
  const auto nbytes = storage_bytes(layout);
  check_data(nbytes.has_value(), "{} '{}' is no tensor", what, tensor.name);
  layout.nbytes = *nbytes;
}

}  // namespace

template <class Archive>
void fields(Archive& archive, NamedTensor& x) {
  archive(x.name, x.layout.dtype, x.layout.sizes);
}

template <class Archive>
void fields(Archive& archive, Weight& x) {
  archive(x.tensor, x.offset);
}

template <class Archive>
void fields(Archive& archive, ProgramState& x) {
  archive(x.tensor, x.weight);
}

template <class Archive>
void fields(Archive& archive, Code& x) {
  archive(x.processor, x.begin, x.nbytes, x.checksum);
}

template <class Archive>
void fields(Archive& archive, Symbol& x) {
  archive(x.name, x.least, x.greatest, x.value);
}

template <class Archive>
void fields(Archive& archive, SizedTensor& x) {
  archive(x.name, x.dtype, x.sizes);
}

template <class Archive>
void fields(Archive& archive, Source& x) {
  archive(x.kind, x.number);
}

template <class Archive>
void fields(Archive& archive, OutputCopy& x) {
  archive(x.output, x.source);
}

template <class Archive>
void fields(Archive& archive, SizeCheck& x) {
  archive(x.left, x.comparison, x.right);
}

template <class Archive>
void fields(Archive& archive, Method& x) {
  std::string facts;
  archive(x.name, x.symbols, x.inputs, x.outputs, x.plan_inputs, x.plan_outputs);
  archive(x.copies, x.checks, facts);
  x.plan_bytes = archive.text();
  read_plan(x.plan_bytes, x.plan.plan, x.plan.numbers);
}

ProgramFile::ProgramFile(
    const std::string& path,
    std::optional<std::string_view> bytes,
    const std::optional<std::string>& weights)
    : file_(bytes ? MappedFile(path, *bytes) : MappedFile(path)) {
  read_head();
  check_tensors();
  map_weights(weights);
  for (const auto& code : codes)
    check_data(
        checksum(this->code(code)) == code.checksum,
        "{}: the code of its kernels is damaged",
        path);
  for (auto& method : methods)
    check_method(method, *this);
  find_forms();
}

const Code* ProgramFile::source_of(const KernelName& kernel) const {
  const char* const end = kernel.object.data() + kernel.object.size();
  size_t number = 0;
  const auto [behind, error] = std::from_chars(kernel.object.data(), end, number);
  const bool is_one = error == std::errc{} && behind == end && number < codes.size() &&
                      codes[number].processor == kSource;
  return is_one ? &codes[number] : nullptr;
}

void ProgramFile::read_head() {
  const auto bytes = file_.bytes();
  check_data(
      bytes.substr(0, kFirstLine.size()) == kFirstLine,
      "{} is no program that this version reads: it does not begin with '{}'",
      path(),
      kFirstLine.substr(0, kFirstLine.size() - 1));
  check_data(bytes.size() >= kHead, "{} ends early", path());
  const auto length = word_at(bytes, 16);
  check_data(length <= bytes.size() - kHead, "{} ends early", path());
  const auto head = bytes.substr(kHead, length);
  check_data(checksum(head) == word_at(bytes, 24), "{} is damaged: its head has changed", path());
  Reader archive(head);
  archive(producer, target, weight_file_name_, weights_begin_, weights_bytes_, block_bytes_);
  archive(block_checks_, weight_list, state_list, codes, methods);
  check_data(archive.at_end(), "there is more behind the head of a program");
  check_sections(kHead + length);
}

// Each byte behind the head is of one section, or zero.
void ProgramFile::check_sections(size_t end_of_head) const {
  const auto bytes = file_.bytes();
  const auto size = static_cast<int64_t>(bytes.size());
  std::vector<Keyed> sections;  // where they begin, and how many bytes they have
  const auto add = [&](int64_t begin, int64_t nbytes, int64_t alignment) {
    check_data(
        nbytes > 0 && begin % alignment == 0 && lies_within(begin, nbytes, size),
        "{}: a section lies beyond its end, or is not aligned",
        path());
    sections.push_back({static_cast<uint64_t>(begin), nbytes});
  };
  for (const auto& code : codes)
    add(code.begin, code.nbytes, kLine);
  if (weight_file_name_.empty() && weights_bytes_ != 0)
    add(weights_begin_, weights_bytes_, kPage);
  sort_first(sections, sections.size());
  auto last = end_of_head;
  for (const auto& [begin, nbytes] : sections) {
    check_data(begin >= last, "{}: its sections overlap", path());
    const auto gap = bytes.substr(last, begin - last);
    check_data(
        gap.find_first_not_of('\0') == std::string_view::npos,
        "{} is damaged: it has something between its sections",
        path());
    last = begin + static_cast<size_t>(nbytes);
  }
  check_data(last == bytes.size(), "{} has another size than its head says", path());
}

void ProgramFile::check_tensors() const {
  auto& self = const_cast<ProgramFile&>(*this);
  for (auto& [tensor, offset] : self.weight_list) {
    check_layout(tensor, "the weight");
    check_data(
        lies_within(offset, static_cast<int64_t>(tensor.layout.nbytes), weights_bytes_),
        "the weight '{}' lies beyond the weights' end",
        tensor.name);
    check_data(
        !weight_file_name_.empty() || offset % kLine == 0,
        "the weight '{}' is not aligned",
        tensor.name);
  }
  for (auto& [tensor, weight] : self.state_list) {
    check_layout(tensor, "the state");
    bool begins = weight == -1;
    if (static_cast<size_t>(weight) < weight_list.size()) {
      const auto& first = weight_list[static_cast<size_t>(weight)].tensor.layout;
      begins = first.dtype == tensor.layout.dtype && first.sizes == tensor.layout.sizes;
    }
    check_data(begins, "the state '{}' begins as no weight of its sizes", tensor.name);
  }
}

void ProgramFile::find_forms() {
  const auto are_alike = [](const std::vector<SizedTensor>& one,
                            const std::vector<SizedTensor>& other) {
    return std::ranges::equal(one, other, [](const auto& a, const auto& b) {
      return a.name == b.name && a.dtype == b.dtype && a.sizes.size() == b.sizes.size();
    });
  };
  for (size_t k = 0; k < methods.size(); ++k) {
    auto& method = methods[k];
    auto* known = methods.data();
    while (known != methods.data() + names && known->name != method.name)
      ++known;
    if (known == methods.data() + names) {
      check_data(names++ == k, "{} comes behind forms of other methods", method.name);
      continue;
    }
    check_data(
        are_alike(known->inputs, method.inputs) && are_alike(known->outputs, method.outputs),
        "{}: its forms take or give other tensors",
        method.name);
    known->forms.push_back(&method);
  }
}

void ProgramFile::map_weights(const std::optional<std::string>& given) {
  check_data(weights_bytes_ >= 0 && weights_begin_ >= 0, "weights of a negative size");
  check_data(
      block_bytes_ > 0 && block_bytes_ % static_cast<int64_t>(sizeof(uint64_t)) == 0,
      "blocks of weights have no size");
  const auto blocks = weights_bytes_ / block_bytes_ + (weights_bytes_ % block_bytes_ != 0);
  check_data(
      static_cast<size_t>(blocks) == block_checks_.size(), "a program lacks checksums of weights");
  auto bytes = file_.bytes();
  if (!weight_file_name_.empty()) {
    check_data(is_file_name(weight_file_name_), "no name of a weight file");
    const auto folder = path().substr(0, path().rfind('/') + 1);
    weight_file_.emplace(given.value_or(folder + weight_file_name_));
    bytes = weight_file_->bytes();
    // Before the weights a safetensors file has a head, and the head's length.
    const auto begin = static_cast<uint64_t>(weights_begin_);
    check_data(
        begin >= sizeof(uint64_t) && bytes.size() >= begin &&
            bytes.size() - begin == static_cast<uint64_t>(weights_bytes_) &&
            word_at(bytes, 0) == begin - sizeof(uint64_t),
        "{} is not the weight file of {}: it has {} bytes, and that one has {} before its weights "
        "and {} of weights",
        weight_file_->path(),
        path(),
        bytes.size(),
        weights_begin_,
        weights_bytes_);
  } else if (given) {
    fail(
        ErrorKind::error,
        "{} has its weights in itself: open it without a path of a weight file",
        path());
  }
  if (weights_bytes_ > 0)
    weights_ =
        bytes.substr(static_cast<size_t>(weights_begin_), static_cast<size_t>(weights_bytes_));
}

}  // namespace tenon
