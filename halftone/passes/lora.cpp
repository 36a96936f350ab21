#include "halftone/passes/lora.h"

#include <fmt/format.h>

#include <optional>

#include "halftone/base/error.h"
#include "halftone/graph/ops.h"
#include "halftone/passes/rewrite.h"

namespace halftone {
namespace {

std::string stem(const std::string& weight) {
  constexpr std::string_view kSuffix = ".weight";
  HT_ASSERT(weight.ends_with(kSuffix));
  return weight.substr(0, weight.size() - kSuffix.size());
}

}  // namespace

std::string lora_strength_name(size_t slot) { return fmt::format("lora.strength.{}", slot); }
std::string lora_dropout_name(size_t slot) { return fmt::format("lora.dropout.{}", slot); }
std::string lora_down_name(const std::string& weight, size_t slot) {
  return fmt::format("{}.{}.lora_A", stem(weight), slot);
}
std::string lora_up_name(const std::string& weight, size_t slot) {
  return fmt::format("{}.{}.lora_B", stem(weight), slot);
}

std::shared_ptr<Graph> attach_lora(const Graph& graph, std::span<const LoraSites> adapters) {
  std::vector<std::optional<Value>> strengths(adapters.size()), keys(adapters.size());
  size_t attached = 0, wanted = 0;
  const auto f32 = [](const Shape& shape) { return ValueType{shape, DType::kF32, {}}; };
  Rewrite how;
  how.node = [&](Graph& out, const Node& node, std::span<const Value> inputs) {
    std::vector<Value> result = copy_node(out, graph, node, inputs);
    if (node.op != Op::kLinear) return result;
    const ValueInfo& weight = graph.values()[node.inputs[1]];
    if (weight.source != Source::kWeight) return result;
    const Value x = inputs[0];
    const int64_t batch = batch_items(x.shape());
    for (size_t slot = 0; slot < adapters.size(); ++slot) {
      const LoraSites& sites = adapters[slot];
      if (!sites.weights.contains(weight.name)) continue;
      auto& strength = strengths[slot];
      if (!strength) strength = out.input(lora_strength_name(slot), f32({batch, sites.rank}));
      HT_ASSERT(x.rank() >= 2 && strength->dim(0) == batch);
      const Value down =
          out.weight(lora_down_name(weight.name, slot), f32({sites.rank, weight.type.shape[1]}));
      const Value up =
          out.weight(lora_up_name(weight.name, slot), f32({weight.type.shape[0], sites.rank}));
      std::vector<int64_t> per_row(static_cast<size_t>(x.rank()), 1);
      per_row.front() = batch;
      per_row.back() = sites.rank;
      Value read = x;
      if (sites.dropout > 0) {
        auto& drawn = keys[slot];
        if (!drawn) drawn = out.input(lora_dropout_name(slot), {{batch, 4}, DType::kI32, {}});
        read = dropout(x, *drawn, {sites.dropout, static_cast<uint32_t>(attached)});
      }
      const Value hidden = linear(read, down) * reshape(*strength, Shape(per_row));
      result[0] = result[0] + linear(hidden, up);
      ++attached;
    }
    return result;
  };
  std::shared_ptr<Graph> out = rewrite(graph, how);
  for (const LoraSites& sites : adapters) wanted += sites.weights.size();
  if (attached < wanted) {
    throw Error(ErrorCode::kInvalidInput, "lora", "a linear that an adapter changes is not there");
  }
  return out;
}

}  // namespace halftone
