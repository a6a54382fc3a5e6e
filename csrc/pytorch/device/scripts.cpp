// TorchScript without its profiling executor looks for ops to fuse on every device that it knows,
// and raises for any other. What it fuses on the host it decides by a setting, which is off. So the
// device's values have the host's type while it looks, and their own again behind it.
#include <torch/csrc/jit/ir/ir.h>
#include <torch/csrc/jit/passes/pass_manager.h>
#include <torch/csrc/jit/runtime/graph_executor.h>

#include <functional>
#include <memory>
#include <unordered_map>

namespace tenon {
namespace {

namespace jit = torch::jit;

// By the number of a value in its graph. A thread optimises one graph at a time.
thread_local std::unordered_map<size_t, c10::TypePtr> own_types;

void each_value(jit::Block* block, const std::function<void(jit::Value*)>& visit) {
  for (jit::Value* value : block->inputs()) {
    visit(value);
  }
  for (jit::Node* node : block->nodes()) {
    for (jit::Value* value : node->outputs()) {
      visit(value);
    }
    for (jit::Block* inner : node->blocks()) {
      each_value(inner, visit);
    }
  }
}

void hide_device(std::shared_ptr<jit::Graph>& graph) {
  own_types.clear();
  if (jit::getProfilingMode()) {
    return;  // the fuser of the profiling executor leaves a device alone that it does not know
  }
  each_value(graph->block(), [](jit::Value* value) {
    const auto type = value->type()->cast<c10::TensorType>();
    if (type != nullptr && type->device().has_value() && type->device()->is_privateuseone()) {
      own_types.emplace(value->unique(), value->type());
      value->setType(type->withDevice(at::Device(at::kCPU)));
    }
  });
}

void restore_device(std::shared_ptr<jit::Graph>& graph) {
  if (own_types.empty()) {
    return;
  }
  each_value(graph->block(), [](jit::Value* value) {
    const auto own = own_types.find(value->unique());
    if (own != own_types.end()) {
      value->setType(own->second);
    }
  });
  own_types.clear();
}

const jit::GraphPassNameType before_fusion = jit::registerPrePass(hide_device);
const jit::GraphPassNameType after_fusion = jit::registerPostPass(restore_device);

}  // namespace
}  // namespace tenon
