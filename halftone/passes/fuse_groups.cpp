#include "halftone/passes/fuse_groups.h"

#include <algorithm>

namespace halftone {
namespace {

// Whose results are a function of the values at the same place alone.
bool is_elementwise(RowFunction function) {
  switch (function) {
    case RowFunction::kAdd:
    case RowFunction::kMul:
    case RowFunction::kAffine:
    case RowFunction::kUnary:
    case RowFunction::kSiluMul:
    case RowFunction::kCast:
      return true;
    default:
      return false;
  }
}

bool is_float(const ValueType& type) {
  return !type.quantized && (type.dtype == DType::kF32 || type.dtype == DType::kBF16);
}

class GroupFinder {
 public:
  GroupFinder(const Graph& graph, const FusedLimits& limits)
      : graph_(graph),
        limits_(limits),
        group_of_(graph.nodes().size(), -1),
        first_of_span_(graph.nodes().size()),
        seen_in_(graph.nodes().size(), 0),
        consumers_(graph.values().size(), std::vector<int>{}),
        is_result_(graph.results()) {
    for (size_t i = 0; i < graph.nodes().size(); ++i) {
      first_of_span_[i] = static_cast<int>(i);
      for (const int id : graph.nodes()[i].inputs) consumers_[id].push_back(static_cast<int>(i));
    }
  }

  FuseGroups run() {
    for (size_t i = 0; i < graph_.nodes().size(); ++i) consider(static_cast<int>(i));
    return {std::move(groups_), std::move(group_of_)};
  }

 private:
  // The rows of a node that can be a step, if it can.
  std::optional<RowShape> rows_of(const Node& node) const {
    const auto function = row_function(node.op);
    if (!function) return std::nullopt;
    const ValueType& type = graph_.values()[node.outputs[0]].type;
    const auto rows = RowShape::of(type.shape);
    if (!rows) return std::nullopt;
    if (*function == RowFunction::kQuantize) {
      // A scale that spans rows needs all of them first.
      const Format& f = *type.quantized;
      const bool spans_rows = f.span == ScaleSpan::kTensor || f.global_scale;
      if ((spans_rows && !f.static_scale) || f.four_over_six || type.shape.rank() != 3) return {};
    } else if (!is_float(type)) {
      return std::nullopt;
    }
    // The gradient of a norm's weight is a sum over rows.
    for (size_t i = 1; i < node.outputs.size(); ++i) {
      if (is_result_[node.outputs[i]] || !consumers_[node.outputs[i]].empty()) return {};
    }
    if (*function == RowFunction::kConcat) {
      const bool columns = std::get<AxisAttributes>(node.attributes).axis == type.shape.rank() - 1;
      if (!columns || type.shape.rank() != 3 || node.inputs.size() != 2 ||
          node.inputs[0] == node.inputs[1]) {
        return std::nullopt;
      }
    }
    for (const int id : node.inputs) {
      const ValueType& input = graph_.values()[id].type;
      const auto lies = as_input(input.shape, *rows);
      if (!is_float(input) || !lies) return std::nullopt;
      const bool elementwise = *function == RowFunction::kAdd || *function == RowFunction::kMul;
      if (elementwise && lies->length != rows->length) return std::nullopt;
    }
    return rows;
  }

  void consider(int index) {
    const auto rows = rows_of(graph_.nodes()[index]);
    if (!rows) return;
    if (graph_.nodes()[index].op == Op::kConcat) return begin_with_concat(index, *rows);
    place(index, *rows);
    unite_what_it_reads(index);
  }

  void place(int index, const RowShape& rows) {
    const Node& node = graph_.nodes()[index];
    for (const int id : node.inputs) {
      const int producer = graph_.values()[id].producer;
      const int group = producer < 0 ? -1 : group_of_[producer];
      if (group >= 0 && try_join(index, group, rows)) return;
    }
    // Others that read the same memory: the columns of one product, say.
    for (const int id : node.inputs) {
      const int root = columns_of(graph_, id).value;
      if (graph_.values()[root].source != Source::kNode) continue;
      for (const int group : readers_of_[root]) {
        if (try_join(index, group, rows)) return;
      }
    }
    groups_.push_back({rows, {}, {}, {}, false});
    join(index, static_cast<int>(groups_.size()) - 1);
  }

  // A chain that begins with what makes the pieces, where nobody else needs those: their rows are
  // shorter, and they are in no chain yet.
  void begin_with_concat(int index, const RowShape& rows) {
    groups_.push_back({rows, {}, {}, {}, false});
    const auto group = static_cast<int>(groups_.size()) - 1;
    const auto& pieces = graph_.nodes()[index].inputs;
    std::vector<std::pair<int, int64_t>> makers;  // nodes, and where their piece begins
    std::vector<int> placed = pieces;             // an input lies at one place of a row, not at two
    int64_t at = 0;
    for (const int id : pieces) {
      const int maker = graph_.values()[id].producer;
      if (maker >= 0 && makes_only_a_piece(id, maker, placed)) {
        makers.emplace_back(maker, at);
        const auto& inputs = graph_.nodes()[maker].inputs;
        placed.insert(placed.end(), inputs.begin(), inputs.end());
      }
      at += graph_.values()[id].type.shape[-1];
    }
    std::sort(makers.begin(), makers.end());
    for (const auto& [maker, begin] : makers) {
      groups_[group_of_[maker]].nodes.clear();
      groups_[group].at[maker] = begin;
      join(maker, group);
    }
    join(index, group);
  }

  bool makes_only_a_piece(int id, int maker, const std::vector<int>& placed) const {
    const Node& node = graph_.nodes()[maker];
    const auto function = row_function(node.op);
    if (!function || !is_elementwise(*function) || group_of_[maker] < 0) return false;
    if (groups_[group_of_[maker]].nodes.size() != 1) return false;
    if (is_result_[id] || consumers_[id].size() != 1) return false;
    return std::none_of(node.inputs.begin(), node.inputs.end(), [&](int input) {
      return std::find(placed.begin(), placed.end(), input) != placed.end();
    });
  }

  bool try_join(int index, int group, const RowShape& rows) {
    const FuseGroup& g = groups_[group];
    if (g.nodes.empty()) return false;  // its node leads to a concat
    // What gradients alone need would be kept until then.
    if (is_gradient(g.nodes.front()) != is_gradient(index)) return false;
    if (!g.rows.same_rows(rows) || g.rows.length != rows.length || !has_room(index, group) ||
        !can_join(index, group)) {
      return false;
    }
    join(index, group);
    return true;
  }

  // Chains that meet: one of them takes the other in. Gradients have two sources, what was kept of
  // the forward pass and what comes from behind; gates with adapters are sums on both sides.
  void unite_what_it_reads(int index) {
    const int group = group_of_[index];
    for (const int id : graph_.nodes()[index].inputs) {
      const int producer = graph_.values()[id].producer;
      const int other = producer < 0 ? -1 : group_of_[producer];
      if (other >= 0 && other != group && can_unite(group, other)) unite(group, other);
    }
  }

  std::vector<int> inputs_of_both(int a, int b) const {
    std::vector<int> both;
    for (const int group : {a, b}) {
      for (const int id : groups_[group].inputs) {
        if (!is_outside(id, a) || !is_outside(id, b)) continue;
        if (std::find(both.begin(), both.end(), id) == both.end()) both.push_back(id);
      }
    }
    return both;
  }

  bool can_unite(int a, int b) {
    const FuseGroup &g = groups_[a], &h = groups_[b];
    const auto is_concat = [&](int node) { return graph_.nodes()[node].op == Op::kConcat; };
    if (!g.rows.same_rows(h.rows) || g.rows.length != h.rows.length ||
        is_gradient(h.nodes.front()) != is_gradient(g.nodes.front()) ||
        std::any_of(g.nodes.begin(), g.nodes.end(), is_concat) ||
        std::any_of(h.nodes.begin(), h.nodes.end(), is_concat) ||
        g.nodes.size() + h.nodes.size() > limits_.steps ||
        !has_room_for(inputs_of_both(a, b), g.rows, g.whole_rows || h.whole_rows)) {
      return false;
    }
    return !needs_through_others(a, b) && !needs_through_others(b, a);
  }

  void unite(int into, int from) {
    FuseGroup &g = groups_[into], &h = groups_[from];
    g.inputs = inputs_of_both(into, from);
    g.whole_rows = g.whole_rows || h.whole_rows;
    for (const int id : g.inputs) {
      std::vector<int>& readers = readers_of_[columns_of(graph_, id).value];
      const auto at = std::lower_bound(readers.begin(), readers.end(), into);
      if (at == readers.end() || *at != into) readers.insert(at, into);
    }
    for (const int node : h.nodes) group_of_[node] = into;
    g.nodes.insert(g.nodes.end(), h.nodes.begin(), h.nodes.end());
    h.nodes.clear();
    std::sort(g.nodes.begin(), g.nodes.end());
    for (int i = g.nodes.front(); i <= g.nodes.back(); ++i) {
      first_of_span_[i] = std::min(first_of_span_[i], g.nodes.front());
    }
  }

  bool is_gradient(int node) const {
    const int region = graph_.nodes()[node].region;
    return region >= 0 && graph_.regions()[region].gradient;
  }

  bool is_outside(int id, int group) const {
    const int producer = graph_.values()[id].producer;
    return producer < 0 || group_of_[producer] != group;
  }

  bool has_room(int index, int group) const {
    const FuseGroup& g = groups_[group];
    std::vector<int> inputs = g.inputs;
    for (const int id : graph_.nodes()[index].inputs) {
      const bool known = std::find(inputs.begin(), inputs.end(), id) != inputs.end();
      if (is_outside(id, group) && !known) inputs.push_back(id);
    }
    return g.nodes.size() < limits_.steps &&
           has_room_for(inputs, g.rows, g.whole_rows || needs_whole_row(index));
  }

  bool has_room_for(const std::vector<int>& inputs, const RowShape& rows, bool whole_rows) const {
    const auto is_per_row = [&](int id) {
      return as_input(graph_.values()[id].type.shape, rows)->source == RowSource::kPerRow;
    };
    return inputs.size() <= limits_.inputs &&
           (!whole_rows || static_cast<size_t>(std::count_if(inputs.begin(), inputs.end(),
                                                             is_per_row)) <= limits_.whole_rows);
  }

  // Whether a result depends on all of a row, beyond a head.
  bool needs_whole_row(int index) const {
    const Node& node = graph_.nodes()[index];
    const ValueType& type = graph_.values()[node.outputs[0]].type;
    switch (node.op) {
      case Op::kRmsNorm:
      case Op::kLayerNorm:
      case Op::kRmsNormGrad:
        return type.shape.rank() == 3;
      case Op::kQuantize:
        return type.quantized->span == ScaleSpan::kRow && !type.quantized->static_scale;
      default:
        return false;
    }
  }

  void join(int index, int group) {
    FuseGroup& g = groups_[group];
    for (const int id : graph_.nodes()[index].inputs) {
      if (!is_outside(id, group)) continue;
      if (std::find(g.inputs.begin(), g.inputs.end(), id) != g.inputs.end()) continue;
      g.inputs.push_back(id);
      std::vector<int>& readers = readers_of_[columns_of(graph_, id).value];
      const auto at = std::lower_bound(readers.begin(), readers.end(), group);
      if (at == readers.end() || *at != group) readers.insert(at, group);
    }
    for (int i = g.nodes.empty() ? index : g.nodes.back(); i <= index; ++i) {
      first_of_span_[i] = std::min(first_of_span_[i], g.nodes.empty() ? index : g.nodes.front());
    }
    group_of_[index] = group;
    g.whole_rows = g.whole_rows || needs_whole_row(index);
    g.nodes.push_back(index);
  }

  // Nothing before this node depends on it or on what follows it: no group lies on both sides.
  int start_of_closed(int node) const {
    while (first_of_span_[node] < node) node = first_of_span_[node];
    return node;
  }

  // Whether no input from outside the group depends on the group: otherwise neither could be first.
  bool can_join(int index, int group) {
    begin_search(start_of_closed(groups_[group].nodes.front()));
    look_at_inputs(index, {group});
    return !finds(group);
  }

  // Whether something that is in neither group needs the one and is needed by the other.
  bool needs_through_others(int group, int other) {
    const int first = std::min(groups_[group].nodes.front(), groups_[other].nodes.front());
    begin_search(start_of_closed(first));
    for (const int node : groups_[group].nodes) look_at_inputs(node, {group, other});
    return finds(other);
  }

  // A search through what is needed. Only what lies after `start` is looked at, so that all of this
  // takes time in proportion to the graph's size.
  void begin_search(int start) {
    ++search_;
    start_ = start;
    open_.clear();
  }
  void look_at_inputs(int node, std::initializer_list<int> but_not_in = {}) {
    for (const int id : graph_.nodes()[node].inputs) {
      const int producer = graph_.values()[id].producer;
      if (producer < start_ || seen_in_[producer] == search_) continue;
      if (std::find(but_not_in.begin(), but_not_in.end(), group_of_[producer]) !=
          but_not_in.end()) {
        continue;
      }
      seen_in_[producer] = search_;
      open_.push_back(producer);
    }
  }
  bool finds(int group) {
    while (!open_.empty()) {
      const int node = open_.back();
      open_.pop_back();
      if (group_of_[node] == group) return true;
      look_at_inputs(node);
      if (group_of_[node] >= 0) {  // a group runs as a whole: all of its inputs come first
        for (const int other : groups_[group_of_[node]].nodes) look_at_inputs(other);
      }
    }
    return false;
  }

  const Graph& graph_;
  FusedLimits limits_;
  std::vector<int> group_of_;
  std::vector<int> first_of_span_;  // the first node of any group that lies on both sides of a node
  std::vector<int> seen_in_;        // the last search that saw a node
  int search_ = 0, start_ = 0;
  std::vector<int> open_;
  std::vector<std::vector<int>> consumers_;  // of values
  std::vector<bool> is_result_;
  std::vector<FuseGroup> groups_;
  std::map<int, std::vector<int>> readers_of_;  // groups by what they read
};

}  // namespace

std::optional<RowFunction> row_function(Op op) {
  switch (op) {
    case Op::kAdd:
      return RowFunction::kAdd;
    case Op::kMul:
      return RowFunction::kMul;
    case Op::kAffine:
      return RowFunction::kAffine;
    case Op::kUnary:
      return RowFunction::kUnary;
    case Op::kSiluMul:
      return RowFunction::kSiluMul;
    case Op::kCast:
      return RowFunction::kCast;
    case Op::kRmsNorm:
      return RowFunction::kRmsNorm;
    case Op::kLayerNorm:
      return RowFunction::kLayerNorm;
    case Op::kRmsNormGrad:
      return RowFunction::kRmsNormGrad;
    case Op::kRope:
      return RowFunction::kRope;
    case Op::kConcat:
      return RowFunction::kConcat;
    case Op::kQuantize:
      return RowFunction::kQuantize;
    default:
      return std::nullopt;
  }
}

std::optional<FusedRowsAttributes::Input> as_input(const Shape& shape, const RowShape& rows) {
  using Input = FusedRowsAttributes::Input;
  if (shape.rank() == 1) return Input{RowSource::kShared, shape[0], 0, shape[0]};
  if (shape.rank() < 3) return std::nullopt;
  const int64_t length = shape.numel() / (shape[0] * shape[1]);
  if (shape[0] == rows.items && shape[1] == rows.rows_per_item) {
    return Input{RowSource::kPerRow, length, 0, length};
  }
  if (shape[1] != 1 || (shape[0] != rows.items && shape[0] != 1)) return std::nullopt;
  return Input{shape[0] == 1 ? RowSource::kShared : RowSource::kPerItem, length, 0, length};
}

RowColumns columns_of(const Graph& graph, int id) {
  const Shape& rows = graph.values()[id].type.shape;
  if (rows.rank() < 3) return {id};
  // [B, T, ...], or [B, C] where a row is all that belongs to an item.
  const auto keeps_rows = [&](const Shape& shape) {
    return (shape.rank() == 3 && shape[0] == rows[0] && shape[1] == rows[1]) ||
           (shape.rank() == 2 && shape[0] == rows[0] && rows[1] == 1);
  };
  RowColumns found{id};
  int64_t begin = 0;
  for (int at = id; graph.values()[at].producer >= 0;) {
    const Node& node = graph.nodes()[graph.values()[at].producer];
    if (node.op != Op::kReshape && node.op != Op::kSlice) break;
    const int from = node.inputs[0];
    const Shape& shape = graph.values()[from].type.shape;
    if (!keeps_rows(shape)) break;
    if (node.op == Op::kSlice) {
      const auto& how = std::get<AxisAttributes>(node.attributes);
      if (how.axis != shape.rank() - 1) break;
      begin += how.begin;
      found = {from, begin, shape[-1]};
    }
    at = from;
  }
  return found;
}

FuseGroups find_fuse_groups(const Graph& graph, const FusedLimits& limits) {
  return GroupFinder(graph, limits).run();
}

}  // namespace halftone
