#include "halftone/passes/fuse.h"

#include <algorithm>

#include "halftone/base/error.h"
#include "halftone/passes/fuse_groups.h"
#include "halftone/passes/rewrite.h"

namespace halftone {
namespace {

// Writes the graph with a node for every group.
class Fuser {
 public:
  Fuser(const Graph& graph, FuseGroups found)
      : graph_(graph),
        groups_(std::move(found.groups)),
        group_of_(std::move(found.group_of)),
        consumers_(graph.values().size(), std::vector<int>{}),
        is_result_(graph.results()) {
    for (size_t i = 0; i < graph.nodes().size(); ++i) {
      for (const int id : graph.nodes()[i].inputs) consumers_[id].push_back(static_cast<int>(i));
    }
  }

  std::shared_ptr<Graph> emit() const {
    return rebuild(graph_, [&](Graph& out, std::vector<Value>& at) {
      for (const int unit : order()) {
        const int group = group_of_[unit];
        if (group >= 0 && (groups_[group].nodes.size() > 1 || worth_it_alone(unit))) {
          emit_group(out, group, at);
          continue;
        }
        const Node& node = graph_.nodes()[unit];
        std::vector<Value> inputs;
        for (const int id : node.inputs) inputs.push_back(at[id]);
        const auto region = out.enter_region(node.region);
        const auto values = copy_node(out, graph_, node, inputs);
        for (size_t i = 0; i < values.size(); ++i) at[node.outputs[i]] = values[i];
      }
    });
  }

 private:
  // Nodes and groups in an order that they can run in, the graph's own where possible.
  std::vector<int> order() const {
    const auto count = static_cast<int>(graph_.nodes().size());
    const auto unit = [&](int node) {
      const int group = group_of_[node];
      return group < 0 ? node : groups_[group].nodes[0];
    };
    std::vector<int> result;
    std::vector<char> state(graph_.nodes().size(), 0);  // 0 new, 1 waiting for inputs, 2 done
    std::vector<int> stack;
    for (int i = 0; i < count; ++i) {
      // A group is placed where its last node was, so that nothing moves ahead of what it needs.
      const int group = group_of_[i];
      if (group >= 0 && groups_[group].nodes.back() != i) continue;
      stack.push_back(unit(i));
      while (!stack.empty()) {
        const int u = stack.back();
        if (state[u] == 2) {
          stack.pop_back();
          continue;
        }
        const bool ready = state[u] == 1;
        state[u] = 1;
        const int g = group_of_[u];
        if (ready) {
          state[u] = 2;
          result.push_back(u);
          stack.pop_back();
          continue;
        }
        const auto visit = [&](int node) {
          for (const int id : graph_.nodes()[node].inputs) {
            const int producer = graph_.values()[id].producer;
            if (producer < 0 || unit(producer) == u || state[unit(producer)] == 2) continue;
            HT_ASSERT(state[unit(producer)] != 1 || unit(producer) == u);
            stack.push_back(unit(producer));
          }
        };
        if (g < 0) {
          visit(u);
        } else {
          for (const int node : groups_[g].nodes) visit(node);
        }
      }
    }
    return result;
  }

  bool is_needed_outside(int value, int group) const {
    return is_result_[value] || std::any_of(consumers_[value].begin(), consumers_[value].end(),
                                            [&](int node) { return group_of_[node] != group; });
  }

  // Alone, but quantizing, which is the same as a chain of one; a norm, whose bits are then those
  // that it has among others; or on columns of something wider, which then need not be copied out.
  bool worth_it_alone(int node) const {
    const Op op = graph_.nodes()[node].op;
    if (op == Op::kQuantize || op == Op::kRmsNorm || op == Op::kLayerNorm) return true;
    const auto& inputs = graph_.nodes()[node].inputs;
    return std::any_of(inputs.begin(), inputs.end(),
                       [&](int id) { return columns_of(graph_, id).stride != 0; });
  }

  static void set_attributes(RowStep& step, const Attributes& attributes) {
    if (const auto* a = std::get_if<AffineAttributes>(&attributes)) step.affine = *a;
    if (const auto* a = std::get_if<UnaryAttributes>(&attributes)) step.unary = *a;
    if (const auto* a = std::get_if<NormAttributes>(&attributes)) step.norm = *a;
    if (const auto* a = std::get_if<RopeAttributes>(&attributes)) step.rope = *a;
    if (const auto* a = std::get_if<QuantizeAttributes>(&attributes)) {
      step.format = a->format;
      step.static_scale = a->static_scale;
    }
  }

  void emit_group(Graph& out, int group, std::vector<Value>& at) const {
    const FuseGroup& g = groups_[group];
    FusedRowsAttributes how;
    how.rows = g.rows.items * g.rows.rows_per_item;
    how.rows_per_item = g.rows.rows_per_item;
    std::map<int, int> slot;  // value -> input or step
    std::vector<Value> inputs;
    for (const int index : g.nodes) {
      const Node& node = graph_.nodes()[index];
      int64_t at_column = g.at.contains(index) ? g.at.at(index) : node.op == Op::kConcat ? 0 : -1;
      for (const int id : node.inputs) {
        const int producer = graph_.values()[id].producer;
        const int64_t lies_at = at_column;
        if (node.op == Op::kConcat) at_column += graph_.values()[id].type.shape[-1];
        if (slot.contains(id) || (producer >= 0 && group_of_[producer] == group)) continue;
        slot[id] = static_cast<int>(inputs.size());
        auto input = *as_input(graph_.values()[id].type.shape, g.rows);
        input.at = lies_at;
        const RowColumns columns = columns_of(graph_, id);
        if (columns.stride != 0) {
          input.begin = columns.begin;
          input.stride = columns.stride;
        }
        inputs.push_back(at[columns.value]);
        how.inputs.push_back(input);
      }
    }
    std::vector<ValueType> types;
    std::vector<int> results;
    for (const int index : g.nodes) {
      const Node& node = graph_.nodes()[index];
      const int id = node.outputs[0];
      const ValueType& type = graph_.values()[id].type;
      RowStep step;
      step.function = *row_function(node.op);
      for (size_t i = 0; i < node.inputs.size(); ++i) step.operands[i] = slot.at(node.inputs[i]);
      step.length = type.shape.numel() / how.rows;
      step.width = type.shape[-1];
      step.dtype = type.dtype;
      set_attributes(step, node.attributes);
      if (node.op == Op::kConcat) step.split = graph_.values()[node.inputs[0]].type.shape[-1];
      if (is_needed_outside(id, group)) {
        step.output = static_cast<int>(types.size());
        types.push_back(type);
        results.push_back(id);
      }
      slot[id] = static_cast<int>(inputs.size() + how.steps.size());
      how.steps.push_back(step);
    }
    const auto region = out.enter_region(graph_.nodes()[g.nodes[0]].region);
    const auto values = out.add(Op::kFusedRows, inputs, how, types);
    for (size_t i = 0; i < values.size(); ++i) at[results[i]] = values[i];
  }

  const Graph& graph_;
  std::vector<FuseGroup> groups_;
  std::vector<int> group_of_;
  std::vector<std::vector<int>> consumers_;  // of values
  std::vector<bool> is_result_;
};

}  // namespace

std::shared_ptr<Graph> fuse(const Graph& graph, const FusedLimits& limits) {
  return Fuser(graph, find_fuse_groups(graph, limits)).emit();
}

}  // namespace halftone
