#include "halftone/passes/channels_last.h"

#include <algorithm>
#include <set>

#include "halftone/base/error.h"
#include "halftone/graph/ops.h"
#include "halftone/passes/rewrite.h"

namespace halftone {
namespace {

const std::vector<int> kToLast = {0, 2, 3, 1}, kToFirst = {0, 3, 1, 2};

// Where dimension d of [B, C, H, W] is in [B, H, W, C].
int axis_with_channels_last(int d) {
  constexpr std::array<int, 4> kAxis = {0, 3, 1, 2};
  return kAxis[static_cast<size_t>(d)];
}

class ChannelsLast {
 public:
  explicit ChannelsLast(const Graph& graph) : graph_(graph), last_(graph.values().size()) {}

  std::shared_ptr<Graph> run() {
    return rebuild(graph_, [&](Graph& out, std::vector<Value>& at) {
      at_ = &at;
      for (const Node& node : graph_.nodes()) {
        const auto region = out.enter_region(node.region);
        add(out, node);
      }
      for (const auto* side : {&graph_.outputs(), &graph_.updates()}) {
        for (const auto& [name, value] : *side) first(value.id());
      }
    });
  }

 private:
  static bool exists(const Value& value) { return value.id() >= 0; }
  bool is_last(int id) const { return exists(last_[id]); }
  const Shape& shape_of(int id) const { return graph_.values()[id].type.shape; }

  // A value as the graph has it, and with channels last; whichever there is not yet is made.
  Value first(int id) {
    Value& value = (*at_)[id];
    if (!exists(value)) value = permute(last_[id], kToFirst);
    return value;
  }
  Value last(int id) {
    if (!is_last(id)) last_[id] = permute(first(id), kToLast);
    return last_[id];
  }

  void add(Graph& out, const Node& node) {
    if (!add_with_channels_last(node)) add_as_it_is(out, node);
  }

  void add_as_it_is(Graph& out, const Node& node) {
    std::vector<Value> inputs;
    for (const int id : node.inputs) inputs.push_back(first(id));
    const auto made = copy_node(out, graph_, node, inputs);
    for (size_t i = 0; i < made.size(); ++i) (*at_)[node.outputs[i]] = made[i];
  }

  bool add_with_channels_last(const Node& node) {
    const int to = node.outputs[0];
    const auto& in = node.inputs;
    const bool picture = shape_of(to).rank() == 4 && !graph_.values()[to].type.quantized;
    const auto done = [&](Value value) {
      last_[to] = value;
      return true;
    };
    switch (node.op) {
      case Op::kConv2d: {
        ConvAttributes how = std::get<ConvAttributes>(node.attributes);
        if (how.channels_last || how.shifts || how.adds) return false;
        how.channels_last = true;
        const auto bias = in.size() > 2 ? std::optional(first(in[2])) : std::nullopt;
        return done(conv2d(last(in[0]), first(in[1]), bias, how));
      }
      case Op::kGroupNorm: {
        const auto& how = std::get<NormAttributes>(node.attributes);
        if (how.channels_last) return false;
        return done(group_norm(last(in[0]), first(in[1]), first(in[2]), how.groups, how.eps, true));
      }
      case Op::kUpsample2x:
        if (std::get<UpsampleAttributes>(node.attributes).channels_last) return false;
        return done(upsample2x(last(in[0]), true));
      case Op::kPermute:
        return add_permute(node);
      case Op::kAdd:
      case Op::kMul:
      case Op::kSiluMul:
        return picture && has_last(in) && fit(in, to) && done(combine(node));
      case Op::kAffine:
      case Op::kUnary:
      case Op::kCast:
        if (!picture || !is_last(in[0])) return false;
        return done(last_[in[0]].graph().add(node.op, {last(in[0])}, node.attributes,
                                             type_with_channels_last(to)));
      case Op::kConcat:
      case Op::kSlice:
      case Op::kPad:
        return picture && has_last(in) && done(along_axis(node));
      default:
        return false;
    }
  }

  bool has_last(const std::vector<int>& ids) const {
    return std::any_of(ids.begin(), ids.end(), [&](int id) { return is_last(id); });
  }

  // Operands that are pictures, or the same for all of a channel's pixels.
  bool fit(const std::vector<int>& ids, int to) const {
    return std::all_of(ids.begin(), ids.end(), [&](int id) {
      const Shape& shape = shape_of(id);
      return shape == shape_of(to) || (shape.rank() == 4 && shape[2] == 1 && shape[3] == 1);
    });
  }

  ValueType type_with_channels_last(int id) const {
    ValueType type = graph_.values()[id].type;
    const Shape& s = type.shape;
    type.shape = {s[0], s[2], s[3], s[1]};
    return type;
  }

  Value combine(const Node& node) {
    std::vector<Value> operands;
    for (const int id : node.inputs) {
      const Shape& s = shape_of(id);
      const bool per_channel = s[2] == 1 && s[3] == 1 && !is_last(id);  // its bytes lie alike
      operands.push_back(per_channel ? reshape(first(id), {s[0], 1, 1, s[1]}) : last(id));
    }
    return operands[0].graph().add(node.op, operands, node.attributes,
                                   type_with_channels_last(node.outputs[0]));
  }

  Value along_axis(const Node& node) {
    auto how = std::get<AxisAttributes>(node.attributes);
    how.axis = axis_with_channels_last(how.axis);
    std::vector<Value> parts;
    for (const int id : node.inputs) parts.push_back(last(id));
    return parts[0].graph().add(node.op, parts, how, type_with_channels_last(node.outputs[0]));
  }

  // Tokens of a picture, and a picture of tokens, are there already.
  bool add_permute(const Node& node) {
    const auto& order = std::get<PermuteAttributes>(node.attributes).order;
    const int from = node.inputs[0], to = node.outputs[0];
    if (order == kToFirst && !is_last(from)) {
      last_[to] = first(from);
      return true;
    }
    if (order.size() != 4 || !is_last(from)) return false;
    std::vector<int> composed;
    for (const int d : order) composed.push_back(axis_with_channels_last(d));
    const bool same = std::is_sorted(composed.begin(), composed.end());
    (*at_)[to] = same ? last_[from] : permute(last_[from], composed);
    return true;
  }

  const Graph& graph_;
  std::vector<Value> last_;           // by the graph's value: its copy with channels last
  std::vector<Value>* at_ = nullptr;  // and as it was
};

bool is_silu(const Node& node) {
  const auto* unary = std::get_if<UnaryAttributes>(&node.attributes);
  return unary != nullptr && unary->function == Function::kSilu;
}

}  // namespace

std::shared_ptr<Graph> channels_last(const Graph& graph) {
  const auto changes = [](const Node& node) {
    return node.op == Op::kConv2d || node.op == Op::kGroupNorm;
  };
  if (std::none_of(graph.nodes().begin(), graph.nodes().end(), changes)) return rewrite(graph, {});
  return ChannelsLast(graph).run();
}

std::shared_ptr<Graph> fold_silu(const Graph& graph) {
  std::vector<int> readers(graph.values().size(), 0);
  for (const Node& node : graph.nodes()) {
    for (const int id : node.inputs) ++readers[id];
  }
  const std::vector<bool> results = graph.results();
  std::set<int> normed, dropped;  // norms by their result; SiLUs that vanish by theirs
  for (const Node& node : graph.nodes()) {
    const int from = node.inputs.empty() ? -1 : node.inputs[0];
    const int producer = from < 0 ? -1 : graph.values()[from].producer;
    if (!is_silu(node) || producer < 0 || readers[from] != 1 || results[from]) continue;
    const Node& norm = graph.nodes()[producer];
    if (norm.op != Op::kGroupNorm || !std::get<NormAttributes>(norm.attributes).channels_last) {
      continue;
    }
    normed.insert(from);
    dropped.insert(node.outputs[0]);
  }
  Rewrite how;
  how.node = [&](Graph& out, const Node& node,
                 std::span<const Value> inputs) -> std::vector<Value> {
    if (dropped.contains(node.outputs[0])) return {inputs[0]};
    if (!normed.contains(node.outputs[0])) return copy_node(out, graph, node, inputs);
    Node with = node;
    std::get<NormAttributes>(with.attributes).silu = true;
    return copy_node(out, graph, with, inputs);
  };
  return rewrite(graph, how);
}

}  // namespace halftone
