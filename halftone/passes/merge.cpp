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
    if (node.op != Op::kLinear || adds_operand(node)) return false;
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
    std::vector<size_t>& on_input = groups_on_[node.inputs[0]];
    for (const size_t group : on_input) {
      if (!are_alike(graph_.nodes()[groups_[group][0]], node)) continue;
      groups_[group].push_back(index);
      return;
    }
    on_input.push_back(groups_.size());
    groups_.push_back({index});
  }

  // Of linears on the same input.
  bool are_alike(const Node& a, const Node& b) const {
    const auto& how_a = std::get<LinearAttributes>(a.attributes);
    const auto& how_b = std::get<LinearAttributes>(b.attributes);
    return a.inputs.size() == b.inputs.size() && (a.region == b.region || rank_of_input(b) == 2) &&
           weight_of(a).type == weight_of(b).type && how_a.activations == how_b.activations &&
           how_a.static_scale == how_b.static_scale &&
           graph_.values()[a.outputs[0]].type == graph_.values()[b.outputs[0]].type &&
           can_be_stacked(a, b);
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
      WeightStack names;
      for (const int index : group) {
        names.push_back(graph_.values()[graph_.nodes()[index].inputs[k]].name);
      }
      ValueType type = graph_.values()[first.inputs[k]].type;
      std::vector<int64_t> dims(type.shape.dims().begin(), type.shape.dims().end());
      dims[0] *= parts;
      type.shape = Shape(dims);
      inputs.push_back(out.stacked_weight(names, type));
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
  std::map<int, std::vector<size_t>> groups_on_;  // by the input that they read
  std::set<std::string> dropped_;
};

}  // namespace

std::shared_ptr<Graph> merge_linears(const Graph& graph, const CanStack& can_stack) {
  return Merger(graph, can_stack).run();
}

std::vector<WeightStack> weight_stacks(const Graph& graph) {
  std::vector<WeightStack> stacks;
  for (const auto& [name, value] : graph.weights()) {
    if (!graph.info(value).parts.empty()) stacks.push_back(graph.info(value).parts);
  }
  return stacks;
}

}  // namespace halftone
