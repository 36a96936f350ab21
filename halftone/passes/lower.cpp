#include "halftone/passes/lower.h"

#include "halftone/graph/ops.h"
#include "halftone/passes/rewrite.h"

namespace halftone {

std::shared_ptr<Graph> lower(const Graph& graph) {
  struct Made {
    Value from, to;
    float static_scale;
  };
  std::vector<Made> made;
  const auto quantized = [&](Value x, const Format& format, float static_scale) {
    for (const auto& [from, to, scale] : made) {
      if (from == x && to.type().quantized == format && scale == static_scale) return to;
    }
    made.push_back({x, quantize(x, format, static_scale), static_scale});
    return made.back().to;
  };
  Rewrite how;
  how.node = [&](Graph& out, const Node& node,
                 std::span<const Value> inputs) -> std::vector<Value> {
    if (node.op != Op::kLinear) return copy_node(out, graph, node, inputs);
    const auto& attributes = std::get<LinearAttributes>(node.attributes);
    if (!attributes.activations) return copy_node(out, graph, node, inputs);
    std::vector<Value> changed(inputs.begin(), inputs.end());
    changed[0] = quantized(inputs[0], *attributes.activations, attributes.static_scale);
    const ValueType& type = graph.values()[node.outputs[0]].type;
    return {out.add(Op::kLinear, changed, LinearAttributes{.gelu = attributes.gelu}, type)};
  };
  return rewrite(graph, how);
}

}  // namespace halftone
