#include "halftone/passes/addends.h"

#include <algorithm>
#include <map>
#include <optional>

#include "halftone/base/error.h"
#include "halftone/graph/ops.h"
#include "halftone/passes/rewrite.h"

namespace halftone {
namespace {

class AddendFolder {
 public:
  explicit AddendFolder(const Graph& graph)
      : graph_(graph), readers_(graph.values().size(), 0), is_result_(graph.results()) {
    for (const Node& node : graph.nodes()) {
      for (const int id : node.inputs) ++readers_[id];
    }
    for (size_t i = 0; i < graph.nodes().size(); ++i) {
      if (graph.nodes()[i].op == Op::kAdd) fold(static_cast<int>(i));
    }
  }

  std::shared_ptr<Graph> run() const {
    return rebuild(graph_, [&](Graph& out, std::vector<Value>& at) {
      for (size_t i = 0; i < graph_.nodes().size(); ++i) {
        const Node& node = graph_.nodes()[i];
        const auto region = out.enter_region(node.region);
        const auto folded = folded_.find(static_cast<int>(i));
        if (folded != folded_.end()) {
          at[node.outputs[0]] = sum(out, at, node, folded->second);
          continue;
        }
        if (gone_[i]) continue;
        std::vector<Value> inputs;
        for (const int id : node.inputs) inputs.push_back(at[id]);
        const auto values = copy_node(out, graph_, node, inputs);
        for (size_t k = 0; k < values.size(); ++k) at[node.outputs[k]] = values[k];
      }
    });
  }

 private:
  struct Folded {
    int product = -1;     // node
    int addend = -1;      // value
    bool shifts = false;  // by which every pixel of an item is moved alike
  };

  const ValueType& type_of(int id) const { return graph_.values()[id].type; }

  bool is_read_here_alone(int id) const { return readers_[id] == 1 && !is_result_[id]; }

  // The product that a value is, if it can take an addend; views of it may stand between.
  std::optional<int> product_of(int id) const {
    for (;;) {
      const int producer = graph_.values()[id].producer;
      if (producer < 0 || gone_[producer] || folded_.contains(producer)) return std::nullopt;
      const Node& node = graph_.nodes()[producer];
      if (!is_read_here_alone(node.outputs[0])) return std::nullopt;
      if (node.op == Op::kReshape) {
        id = node.inputs[0];
        continue;
      }
      const auto* conv = std::get_if<ConvAttributes>(&node.attributes);
      const bool convolution =
          node.op == Op::kConv2d && conv->channels_last && !conv->adds && !conv->shifts;
      const bool product = node.op == Op::kLinear || node.op == Op::kMatMul ||
                           node.op == Op::kLinearInputGrad || convolution;
      if (!product || adds_operand(node) || applies_gelu(node)) return std::nullopt;
      return producer;
    }
  }
  static bool applies_gelu(const Node& node) {
    const auto* linear = std::get_if<LinearAttributes>(&node.attributes);
    return linear != nullptr && (linear->gelu || linear->activations);
  }

  // Multiplications.
  double work(int product) const {
    const Node& node = graph_.nodes()[product];
    const Shape& a = type_of(node.inputs[0]).shape;
    const auto* matmul = std::get_if<MatMulAttributes>(&node.attributes);
    if (node.op == Op::kConv2d) {
      const Shape& kernel = type_of(node.inputs[1]).shape;
      const int64_t each = kernel[1] * kernel[2] * kernel[3];
      return static_cast<double>(type_of(node.outputs[0]).shape.numel()) *
             static_cast<double>(each);
    }
    const int64_t along = matmul != nullptr && matmul->transpose_a ? a[0] : a[-1];
    return static_cast<double>(type_of(node.outputs[0]).shape.numel()) * static_cast<double>(along);
  }

  void fold(int index) {
    const Node& add = graph_.nodes()[index];
    const ValueType& type = type_of(add.outputs[0]);
    if (fold_shift(index)) return;
    std::optional<int> chosen;
    int addend = -1;
    for (size_t side = 0; side < 2; ++side) {
      const int id = add.inputs[side], other = add.inputs[1 - side];
      if (!(type_of(id) == type) || !(type_of(other) == type)) return;  // broadcast
      const auto product = product_of(id);
      if (!product || (chosen && work(*chosen) >= work(*product))) continue;
      chosen = product;
      addend = other;
    }
    if (!chosen || type.shape.numel() == 0) return;
    folded_[index] = {*chosen, addend};
    take_away(add.inputs[addend == add.inputs[0] ? 1 : 0], *chosen);
  }

  // The product moves to where the sum was, views of it go.
  void take_away(int id, int product) {
    for (;;) {
      const int producer = graph_.values()[id].producer;
      gone_[producer] = true;
      if (producer == product) break;
      id = graph_.nodes()[producer].inputs[0];
    }
  }

  // [B, H, W, O] that a convolution makes, and [B, 1, 1, O].
  bool fold_shift(int index) {
    const Node& add = graph_.nodes()[index];
    const ValueType& type = type_of(add.outputs[0]);
    const Shape& s = type.shape;
    if (s.rank() != 4 || s.numel() == 0 || s[1] * s[2] == 1) return false;
    for (size_t side = 0; side < 2; ++side) {
      const int id = add.inputs[side], shift = add.inputs[1 - side];
      const int producer = graph_.values()[id].producer;
      if (producer < 0 || graph_.nodes()[producer].op != Op::kConv2d || !(type_of(id) == type) ||
          type_of(shift).shape != Shape{s[0], 1, 1, s[3]} || product_of(id) != producer) {
        continue;
      }
      folded_[index] = {producer, shift, true};
      take_away(id, producer);
      return true;
    }
    return false;
  }

  Value sum(Graph& out, const std::vector<Value>& at, const Node& add, const Folded& how) const {
    const Node& product = graph_.nodes()[how.product];
    const ValueType& type = type_of(product.outputs[0]);
    std::vector<Value> inputs;
    for (const int id : product.inputs) inputs.push_back(at[id]);
    Attributes attributes = product.attributes;
    auto* conv = std::get_if<ConvAttributes>(&attributes);
    if (how.shifts) {
      conv->shifts = true;
      inputs.push_back(reshape(at[how.addend], {type.shape[0], type.shape[3]}));
      return out.add(product.op, inputs, attributes, type);
    }
    if (conv != nullptr) conv->adds = true;
    inputs.push_back(reshape(at[how.addend], type.shape));
    if (auto* linear = std::get_if<LinearAttributes>(&attributes)) linear->adds = true;
    if (auto* matmul = std::get_if<MatMulAttributes>(&attributes)) matmul->adds = true;
    if (auto* grad = std::get_if<LinearInputGradAttributes>(&attributes)) grad->adds = true;
    return reshape(out.add(product.op, inputs, attributes, type), type_of(add.outputs[0]).shape);
  }

  const Graph& graph_;
  std::vector<int> readers_;  // of each value
  std::vector<bool> is_result_;
  std::vector<bool> gone_ = std::vector<bool>(graph_.nodes().size(), false);
  std::map<int, Folded> folded_;  // by the addition's node
};

}  // namespace

std::shared_ptr<Graph> fold_addends(const Graph& graph) { return AddendFolder(graph).run(); }

}  // namespace halftone
