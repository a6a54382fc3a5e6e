#include "device/generator.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/Utils.h>
#include <ATen/core/Tensor.h>

#include <cstring>
#include <mutex>
#include <vector>

#include "device/fork.h"
#include "device/pending.h"
#include "device/target.h"

namespace tenon {

GeneratorImpl::GeneratorImpl(c10::DeviceIndex device)
    : c10::GeneratorImpl(
          c10::Device(kTenon, device), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}

CapturedRandom* GeneratorImpl::captured() const {
  auto* found = captured_random(device().index());
  const bool is_default =
      found != nullptr && default_generator(device().index()).unsafeGetGeneratorImpl() == this;
  return is_default ? found : nullptr;
}

const RandomStream& GeneratorImpl::stream() const {
  const auto* graph = captured();
  return graph != nullptr ? graph->next : stream_;
}

RandomStream GeneratorImpl::take(uint64_t ops) {
  auto* graph = captured();
  auto& from = graph != nullptr ? graph->next : stream_;
  const auto taken = from;
  from.offset += ops;
  return taken;
}

// Within a graph a state says how far it is from the graph's start.
void GeneratorImpl::set(const RandomStream& stream) {
  auto* graph = captured();
  if (graph == nullptr) {
    stream_ = stream;
    return;
  }
  if (stream.seed != graph->first.seed || stream.offset < graph->first.offset)
    refuse_in_capture("a state of the generator from elsewhere");
  graph->next = stream;
}

void GeneratorImpl::set_current_seed(uint64_t seed) {
  if (captured() != nullptr)
    refuse_in_capture("a seed");
  stream_ = {seed, 0};
}

void GeneratorImpl::set_offset(uint64_t offset) {
  set({stream().seed, offset});
}

uint64_t GeneratorImpl::seed() {
  const auto random = c10::detail::getNonDeterministicRandom();
  set_current_seed(random);
  return random;
}

void GeneratorImpl::set_state(const c10::TensorImpl& state) {
  at::detail::check_rng_state(state);
  TORCH_CHECK(
      state.numel() == sizeof(stream_),
      "The state of a tenon generator has 16 bytes, this one has ",
      state.numel());
  RandomStream given;
  std::memcpy(&given, state.data(), sizeof(given));
  set(given);
}

c10::intrusive_ptr<c10::TensorImpl> GeneratorImpl::get_state() const {
  // Not by the dispatcher: modes that make fake tensors ask for the state, too.
  const auto state = at::detail::empty_cpu({int64_t{sizeof(stream_)}}, at::kByte);
  std::memcpy(state.mutable_data_ptr(), &stream(), sizeof(stream_));
  return state.getIntrusivePtr();
}

GeneratorImpl* GeneratorImpl::clone_impl() const {
  auto* copy = new GeneratorImpl(device().index());
  copy->stream_ = stream();
  return copy;
}

const at::Generator& default_generator(c10::DeviceIndex device) {
  const auto index = check_index(device);  // raises before there is a target
  // Leaked on purpose: threads may still draw while the process exits.
  static const auto* generators = [] {
    auto* made = new std::vector<at::Generator>();
    for (c10::DeviceIndex i = 0; i < device_count(); ++i)
      made->push_back(at::make_generator<GeneratorImpl>(i));
    return made;
  }();
  return generators->at(index);
}

void take_generators_at_fork() {
  for (c10::DeviceIndex device = 0; device < device_count(); ++device)
    take_at_fork(default_generator(device).unsafeGetGeneratorImpl()->mutex_, ForkOrder::generators);
}

void check_generator(c10::Device tensor, const std::optional<at::Generator>& generator) {
  TORCH_CHECK(
      tensor.type() == kTenon || !generator || generator->device().type() != kTenon,
      "Expected a '",
      tensor.type(),
      "' device type for generator but found '",
      kTenon,
      "'");
}

RandomStream draw(
    const std::optional<at::Generator>& generator, c10::DeviceIndex device, uint64_t ops) {
  auto* own = at::get_generator_or_default<GeneratorImpl>(generator, default_generator(device));
  std::lock_guard<std::mutex> lock(own->mutex_);
  return own->take(ops);
}

at::Generator host_generator(const RandomStream& stream) {
  const auto words = stream(0);
  return at::make_generator<at::CPUGeneratorImpl>(
      (static_cast<uint64_t>(words[1]) << 32) | words[0]);
}

}  // namespace tenon
