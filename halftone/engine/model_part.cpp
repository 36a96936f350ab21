// A network's weights where they run, and adapters'.
#include <algorithm>

#include "halftone/base/error.h"
#include "halftone/engine/model.h"

namespace halftone {

ModelPart::ModelPart(Weights weights, std::span<const std::shared_ptr<Graph>> graphs,
                     CompileOptions compile, const LoadOptions& options, DeviceContext* memory,
                     int stream_blocks)
    : weights_(std::move(weights)), compile_(std::move(compile)) {
  for (const auto& [name, weight] : weights_) check_intact(weight);
  if (memory == nullptr && stream_blocks != 0) {
    throw Error(ErrorCode::kUnsupported, "stream-blocks",
                "the CPU reads weights where they are: blocks are streamed to GPUs");
  }
  if (memory == nullptr) return;
  const std::vector<WeightBlock> streamed = choose_streamed(*graphs[0], stream_blocks);
  CompileOptions how = compile_;
  how.can_stack = [this, together = stack_within(streamed)](const auto& a, const auto& b) {
    return together(a, b) && are_stored_alike(weights_.at(a), weights_.at(b));
  };
  for (const auto& graph : graphs) {
    const auto compiled = halftone::compile(*graph, how, *options.kernels, options.stream).graph;
    for (WeightStack& stack : weight_stacks(*compiled)) stacks_.push_back(std::move(stack));
  }
  index_stacks();
  const Weights host = std::move(weights_);
  weights_ = to_device(host, stacks_, *memory, streamed);
  for (const auto& [name, weight] : host) check_intact(weight);  // copied, or lost meanwhile
}

std::vector<WeightBlock> ModelPart::choose_streamed(const Graph& graph, int count) {
  const std::vector<WeightBlock> blocks = weight_blocks(graph);
  const auto all = static_cast<int>(blocks.size());
  if (count != kAllBlocks && count > all) {
    throw Error(ErrorCode::kUsage, "stream-blocks", "{} are more than the {} blocks that there are",
                count, all);
  }
  block_bytes_ = placed_bytes(weights_, blocks);
  const BlockPlan plan = halftone::stream_blocks(block_bytes_, count);
  streamed_ = {plan.count, all, plan.streamed, plan.resident, plan.slots};
  return plan.chosen(blocks);
}

void ModelPart::index_stacks() {
  for (size_t i = 0; i < stacks_.size(); ++i) {
    for (const std::string& name : stacks_[i]) stack_of_[name] = i;
  }
}

CompileOptions ModelPart::compile_options() const {
  CompileOptions how = compile_;
  how.can_stack = [this](const std::string& a, const std::string& b) {
    const auto x = stack_of_.find(a), y = stack_of_.find(b);
    return x != stack_of_.end() && y != stack_of_.end() && x->second == y->second;
  };
  return how;
}

ModelPart ModelPart::with(const Weights& changed, std::optional<QuantizeRecipe> recipe,
                          const LoadOptions& options) const {
  if (streamed_.blocks > 0 && !changed.empty()) {
    throw Error(ErrorCode::kUnsupported, "stream-blocks",
                "weights of blocks that are streamed are not exchanged");
  }
  ModelPart part;
  part.weights_ = weights_;
  part.streamed_ = streamed_;
  if (changed.empty()) part.block_bytes_ = block_bytes_;
  part.compile_ = compile_;
  part.compile_.recipe = std::move(recipe);
  // Stacks stay where all of their weights stay, or all of them change in the same way.
  std::vector<WeightStack> moved;
  for (const WeightStack& stack : stacks_) {
    const auto changes = [&](const std::string& name) { return changed.contains(name); };
    const bool some = std::any_of(stack.begin(), stack.end(), changes);
    const bool all = std::all_of(stack.begin(), stack.end(), changes);
    const bool alike = all && std::all_of(stack.begin(), stack.end(), [&](const std::string& name) {
                         return are_stored_alike(changed.at(stack[0]), changed.at(name));
                       });
    if (some && !alike) continue;
    part.stacks_.push_back(stack);
    if (some) moved.push_back(stack);
  }
  part.index_stacks();
  DeviceContext* device = options.stream.device;
  const Weights placed =
      device != nullptr && !changed.empty() ? to_device(changed, moved, *device) : changed;
  for (const auto& [name, weight] : placed) part.weights_[name] = weight;
  return part;
}

Adapter::Adapter(LoraAdapter adapter, const ModelParts& model, DeviceContext* device)
    : lora_(std::move(adapter)) {
  const auto place = [&](AdaptedPart part) {
    Weights& weights = first_[part];
    weights = lora_.weights(0, part);
    if (device != nullptr) weights = to_device(weights, {}, *device);
  };
  place(kDenoiserPart);
  for (size_t i = 0; i < model.conditioner->folders().size(); ++i) place(i);
}

Weights Adapter::all_weights() const {
  Weights all;
  for (const auto& [part, weights] : first_) {
    const std::string within = part ? fmt::format("encoder {} ", *part) : "";
    for (const auto& [name, weight] : weights) all.emplace(within + name, weight);
  }
  return all;
}

Weights Adapter::weights(size_t slot, AdaptedPart part) const {
  Weights weights;
  const Weights& first = first_.at(part);
  for (const auto& [weight, module] : lora_.modules(part)) {
    weights.emplace(lora_down_name(weight, slot), first.at(lora_down_name(weight)));
    weights.emplace(lora_up_name(weight, slot), first.at(lora_up_name(weight)));
  }
  return weights;
}

}  // namespace halftone
