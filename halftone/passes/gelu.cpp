#include "halftone/passes/gelu.h"

#include <algorithm>
#include <map>
#include <set>

#include "halftone/passes/rewrite.h"

namespace halftone {
namespace {

bool is_gelu(const Node& node) {
  const auto* unary = std::get_if<UnaryAttributes>(&node.attributes);
  return unary != nullptr && unary->function == Function::kGelu;
}

}  // namespace

std::shared_ptr<Graph> fold_gelu(const Graph& graph) {
  std::map<int, std::vector<const Node*>> readers;
  for (const Node& node : graph.nodes()) {
    for (const int id : node.inputs) readers[id].push_back(&node);
  }
  const std::vector<bool> results = graph.results();

  // Linears by their result; GELUs that vanish by theirs.
  std::set<int> changed, dropped;
  for (const Node& node : graph.nodes()) {
    if (!is_gelu(node)) continue;
    const int from = node.inputs[0], producer = graph.values()[from].producer;
    const auto quantizes = [](const Node* reader) { return reader->op == Op::kQuantize; };
    const auto& after = readers[node.outputs[0]];
    if (producer < 0 || graph.nodes()[producer].op != Op::kLinear || readers[from].size() != 1 ||
        results[from] || std::any_of(after.begin(), after.end(), quantizes)) {
      continue;
    }
    changed.insert(from);
    dropped.insert(node.outputs[0]);
  }
  Rewrite how;
  how.node = [&](Graph& out, const Node& node,
                 std::span<const Value> inputs) -> std::vector<Value> {
    if (dropped.contains(node.outputs[0])) return {inputs[0]};
    if (!changed.contains(node.outputs[0])) return copy_node(out, graph, node, inputs);
    Node with = node;
    std::get<LinearAttributes>(with.attributes).gelu = true;
    return copy_node(out, graph, with, inputs);
  };
  return rewrite(graph, how);
}

}  // namespace halftone
