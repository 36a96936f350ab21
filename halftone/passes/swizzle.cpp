#include "halftone/passes/swizzle.h"

#include <algorithm>

#include "halftone/graph/ops.h"
#include "halftone/passes/rewrite.h"

namespace halftone {
namespace {

bool is_by_block(const ValueType& type) {
  return type.quantized && type.quantized->span == ScaleSpan::kBlock;
}

// Both operands in blocks of one kind, of sizes that tensor cores take.
bool takes_blocks(const Graph& graph, const Node& linear) {
  const ValueType& x = graph.values()[linear.inputs[0]].type;
  const ValueType& weight = graph.values()[linear.inputs[1]].type;
  return is_by_block(x) && is_by_block(weight) && x.quantized->scale == weight.quantized->scale &&
         weight.shape[0] % 16 == 0 && weight.shape[1] % 32 == 0;
}

}  // namespace

std::shared_ptr<Graph> swizzle_block_scales(const Graph& graph) {
  std::vector<bool> changes(graph.values().size(), false), kept = graph.results();
  for (const Node& node : graph.nodes()) {
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const bool fits = i == 0 && node.op == Op::kLinear && takes_blocks(graph, node);
      if (!fits) kept[node.inputs[i]] = true;
    }
  }
  for (const Node& node : graph.nodes()) {
    if (node.op != Op::kQuantize) continue;
    const int id = node.outputs[0];
    const ValueType& type = graph.values()[id].type;
    // A global scale for each item would make a product for each, with tiles of its own.
    const bool one_product = !type.quantized->global_scale || type.quantized->static_scale;
    changes[id] = is_by_block(type) && one_product && !kept[id];
  }
  Rewrite how;
  how.node = [&](Graph& out, const Node& node, std::span<const Value> inputs) {
    if (node.op != Op::kQuantize || !changes[node.outputs[0]]) {
      return copy_node(out, graph, node, inputs);
    }
    auto attributes = std::get<QuantizeAttributes>(node.attributes);
    attributes.format.swizzled = true;
    return std::vector<Value>{quantize(inputs[0], attributes.format, attributes.static_scale)};
  };
  return rewrite(graph, how);
}

}  // namespace halftone
