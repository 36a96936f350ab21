#include "halftone/passes/lower.h"

#include "halftone/graph/ops.h"
#include "halftone/passes/rewrite.h"

namespace halftone {

std::shared_ptr<Graph> lower(const Graph& graph) {
  std::vector<std::pair<Value, Value>> made;  // input -> quantized input
  const auto quantized = [&](Value x, const Format& format) {
    for (const auto& [from, to] : made) {
      if (from == x && to.type().quantized == format) return to;
    }
    made.emplace_back(x, quantize(x, format));
    return made.back().second;
  };
  Rewrite how;
  how.node = [&](Graph& out, const Node& node,
                 std::span<const Value> inputs) -> std::vector<Value> {
    if (node.op != Op::kLinear) return copy_node(out, graph, node, inputs);
    const auto& attributes = std::get<LinearAttributes>(node.attributes);
    if (!attributes.activations) return copy_node(out, graph, node, inputs);
    std::vector<Value> changed(inputs.begin(), inputs.end());
    changed[0] = quantized(inputs[0], *attributes.activations);
    const ValueType& type = graph.values()[node.outputs[0]].type;
    return {out.add(Op::kLinear, changed, LinearAttributes{}, type)};
  };
  return rewrite(graph, how);
}

}  // namespace halftone
