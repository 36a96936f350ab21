#include "halftone/passes/merge.h"

#include <algorithm>
#include <set>

#include "halftone/base/error.h"
#include "halftone/graph/ops.h"
#include "halftone/passes/rewrite.h"

namespace halftone {
namespace {

bool has_scale_for_all(const ValueType& type) {
  return type.quantized &&
         (type.quantized->span == ScaleSpan::kTensor || type.quantized->global_scale);
}

class Merger {
 public:
  Merger(const Graph& graph, const CanStack& can_stack) : graph_(graph), can_stack_(can_stack) {
    for (const Node& node : graph.nodes()) {
      for (const int id : node.inputs) ++readers_[id];
    }
    for (size_t i = 0; i < graph.nodes().size(); ++i) {
      if (is_candidate(graph.nodes()[i])) place(static_cast<int>(i));
    }
    std::erase_if(groups_, [](const auto& group) { return group.size() < 2; });
    for (const auto& group : groups_) {
      for (const int index : group) {
        const auto& inputs = graph_.nodes()[index].inputs;
        for (size_t k = 1; k < inputs.size(); ++k) dropped_.insert(graph_.values()[inputs[k]].name);
      }
    }
  }

  std::shared_ptr<Graph> run() const {
    return rebuild(
        graph_, [&](Graph& out, std::vector<Value>& at) { add_nodes(out, at); }, {},
        [&](const std::string& name) { return dropped_.contains(name); });
  }

 private:
  const ValueInfo& weight_of(const Node& node) const { return graph_.values()[node.inputs[1]]; }

  bool is_candidate(const Node& node) const {
    if (node.op != Op::kLinear) return false;
    const auto is_own_weight = [&](int id) {  // one that others use too has to stay
      return graph_.values()[id].source == Source::kWeight && readers_.at(id) == 1;
    };
    return std::all_of(node.inputs.begin() + 1, node.inputs.end(), is_own_weight) &&
           !has_scale_for_all(weight_of(node).type) && rank_of_input(node) > 1;
  }
  int rank_of_input(const Node& node) const {
    return graph_.values()[node.inputs[0]].type.shape.rank();
  }

  bool can_be_stacked(const Node& a, const Node& b) const {
    for (size_t k = 1; k < a.inputs.size() && can_stack_; ++k) {
      if (!can_stack_(graph_.values()[a.inputs[k]].name, graph_.values()[b.inputs[k]].name)) {
        return false;
      }
    }
    return true;
  }

  void place(int index) {
    const Node& node = graph_.nodes()[index];
    for (auto& group : groups_) {
      const Node& first = graph_.nodes()[group[0]];
      const bool alike =
          first.inputs[0] == node.inputs[0] && first.inputs.size() == node.inputs.size() &&
          (first.region == node.region || rank_of_input(node) == 2) &&
          weight_of(first).type == weight_of(node).type &&
          std::get<LinearAttributes>(first.attributes).activations ==
              std::get<LinearAttributes>(node.attributes).activations &&
          std::get<LinearAttributes>(first.attributes).static_scale ==
              std::get<LinearAttributes>(node.attributes).static_scale &&
          graph_.values()[first.outputs[0]].type == graph_.values()[node.outputs[0]].type &&
          can_be_stacked(first, node);
      if (alike) {
        group.push_back(index);
        return;
      }
    }
    groups_.push_back({index});
  }

  void add_nodes(Graph& out, std::vector<Value>& at) const {
    std::vector<const std::vector<int>*> group_of(graph_.nodes().size(), nullptr);
    for (const auto& group : groups_) {
      for (const int index : group) group_of[index] = &group;
    }
    for (size_t i = 0; i < graph_.nodes().size(); ++i) {
      const Node& node = graph_.nodes()[i];
      const auto region = out.enter_region(node.region);
      if (group_of[i] != nullptr) {
        if (group_of[i]->front() == static_cast<int>(i)) add_merged(out, at, *group_of[i]);
        continue;
      }
      std::vector<Value> inputs;
      for (const int id : node.inputs) inputs.push_back(at[id]);
      const auto values = copy_node(out, graph_, node, inputs);
      for (size_t k = 0; k < values.size(); ++k) at[node.outputs[k]] = values[k];
    }
  }

  void add_merged(Graph& out, std::vector<Value>& at, const std::vector<int>& group) const {
    const Node& first = graph_.nodes()[group[0]];
    const auto parts = static_cast<int64_t>(group.size());
    // Weight and, where there is one, bias.
    std::vector<Value> inputs = {at[first.inputs[0]]};
    for (size_t k = 1; k < first.inputs.size(); ++k) {
      std::string name;
      for (const int index : group) {
        const int id = graph_.nodes()[index].inputs[k];
        name += (name.empty() ? "" : "|") + graph_.values()[id].name;
      }
      ValueType type = graph_.values()[first.inputs[k]].type;
      std::vector<int64_t> dims(type.shape.dims().begin(), type.shape.dims().end());
      dims[0] *= parts;
      type.shape = Shape(dims);
      inputs.push_back(out.weight(name, type));
    }
    ValueType type = graph_.values()[first.outputs[0]].type;
    const int64_t columns = type.shape[-1];
    std::vector<int64_t> dims(type.shape.dims().begin(), type.shape.dims().end());
    dims.back() *= parts;
    type.shape = Shape(dims);
    const Value all = out.add(Op::kLinear, inputs, first.attributes, type);
    for (int64_t i = 0; i < parts; ++i) {
      at[graph_.nodes()[group[i]].outputs[0]] =
          slice(all, all.rank() - 1, i * columns, (i + 1) * columns);
    }
  }

  const Graph& graph_;
  const CanStack& can_stack_;
  std::map<int, int> readers_;  // of each value
  std::vector<std::vector<int>> groups_;
  std::set<std::string> dropped_;
};

}  // namespace

std::shared_ptr<Graph> merge_linears(const Graph& graph, const CanStack& can_stack) {
  return Merger(graph, can_stack).run();
}

std::vector<std::string> merged_weights(const Graph& graph) {
  std::vector<std::string> names;
  for (const auto& [name, value] : graph.weights()) {
    if (name.find('|') != std::string::npos) names.push_back(name);
  }
  return names;
}

}  // namespace halftone
