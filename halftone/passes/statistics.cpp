#include "halftone/passes/statistics.h"

#include <map>

#include "halftone/passes/rewrite.h"

namespace halftone {

std::shared_ptr<Graph> hand_over_statistics(const Graph& graph) {
  // Operands are the same values in both: nothing has been moved or merged yet.
  using Operands = std::vector<int>;
  std::map<Operands, int> forward;  // by operands: the node
  for (size_t i = 0; i < graph.nodes().size(); ++i) {
    const Node& node = graph.nodes()[i];
    if (node.op == Op::kAttention) forward.emplace(node.inputs, static_cast<int>(i));
  }
  const auto forward_of = [&](const Node& gradient) -> const Node* {
    const auto found = forward.find(Operands(gradient.inputs.begin() + 1, gradient.inputs.end()));
    if (found == forward.end()) return nullptr;
    const Node& node = graph.nodes()[found->second];
    const bool same = std::get<AttentionAttributes>(node.attributes) ==
                      std::get<AttentionAttributes>(gradient.attributes);
    return same ? &node : nullptr;
  };
  std::map<const Node*, std::pair<Value, Value>> handed;  // result and statistics
  for (const Node& node : graph.nodes()) {
    if (node.op != Op::kAttentionGrad) continue;
    if (const Node* of = forward_of(node)) handed[of] = {};
  }
  Rewrite how;
  how.node = [&](Graph& out, const Node& node, std::span<const Value> inputs) {
    Node changed = node;
    if (const auto found = handed.find(&node); found != handed.end()) {
      std::get<AttentionAttributes>(changed.attributes).statistics = true;
      const ValueType& y = graph.values()[node.outputs[0]].type;
      const ValueType types[] = {y, {{y.shape[0], y.shape[2], y.shape[1]}, DType::kF32, {}}};
      const auto made = out.add(Op::kAttention, inputs, changed.attributes, types);
      found->second = {made[0], made[1]};
      return std::vector<Value>{made[0]};
    }
    const Node* of = node.op == Op::kAttentionGrad ? forward_of(node) : nullptr;
    if (of == nullptr) return copy_node(out, graph, node, inputs);
    std::get<AttentionAttributes>(changed.attributes).statistics = true;
    std::vector<Value> more(inputs.begin(), inputs.end());
    more.insert(more.end(), {handed.at(of).first, handed.at(of).second});
    return copy_node(out, graph, changed, more);
  };
  return rewrite(graph, how);
}

}  // namespace halftone
