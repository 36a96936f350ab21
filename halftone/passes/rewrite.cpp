#include "halftone/passes/rewrite.h"

#include "halftone/base/error.h"

namespace halftone {

std::vector<Value> copy_node(Graph& out, const Graph& source, const Node& node,
                             std::span<const Value> inputs) {
  std::vector<ValueType> types;
  for (const int id : node.outputs) types.push_back(source.values()[id].type);
  return out.add(node.op, inputs, node.attributes, types);
}

std::shared_ptr<Graph> rewrite(const Graph& source, const Rewrite& how) {
  const auto nodes = [&](Graph& out, std::vector<Value>& at) {
    std::vector<Value> inputs;
    for (const Node& node : source.nodes()) {
      inputs.clear();
      for (const int id : node.inputs) inputs.push_back(at[id]);
      const auto region = out.enter_region(node.region);
      const std::vector<Value> results =
          how.node ? how.node(out, node, inputs) : copy_node(out, source, node, inputs);
      HT_ASSERT(results.size() == node.outputs.size());
      for (size_t i = 0; i < results.size(); ++i) at[node.outputs[i]] = results[i];
    }
  };
  return rebuild(source, nodes, how.weight);
}

std::shared_ptr<Graph> rebuild(const Graph& source, const AddNodes& add_nodes,
                               const WeightType& weight_type, const DropWeight& drop_weight) {
  auto out = std::make_shared<Graph>();
  std::vector<Value> at(source.values().size());
  for (size_t id = 0; id < at.size(); ++id) {
    const ValueInfo& info = source.values()[id];
    switch (info.source) {
      case Source::kInput:
        at[id] = out->input(info.name, info.type);
        break;
      case Source::kWeight:
        if (drop_weight && drop_weight(info.name)) break;
        if (!info.parts.empty()) {
          HT_ASSERT(!weight_type);  // formats are chosen before weights are stacked
          at[id] = out->stacked_weight(info.parts, info.type);
          break;
        }
        at[id] =
            out->weight(info.name, weight_type ? weight_type(info.name, info.type) : info.type);
        break;
      case Source::kConstant:
        at[id] = out->constant(info.name, info.constant);
        break;
      case Source::kState:
        at[id] = out->state(info.name, info.type);
        break;
      case Source::kNode:
        break;
    }
  }
  out->set_regions(source.regions());
  add_nodes(*out, at);
  for (const auto& [name, value] : source.outputs()) out->output(name, at[value.id()]);
  for (const auto& [name, value] : source.updates()) {
    out->update(out->states().at(name), at[value.id()]);
  }
  return out;
}

}  // namespace halftone
