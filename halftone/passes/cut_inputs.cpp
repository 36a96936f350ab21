#include "halftone/passes/cut_inputs.h"

#include <algorithm>
#include <set>

#include "halftone/base/error.h"
#include "halftone/graph/ops.h"
#include "halftone/passes/rewrite.h"

namespace halftone {
namespace {

// The concat along the last axis that made this value; null where none did.
const Node* concat_behind(const Graph& graph, int value) {
  const ValueInfo& info = graph.values()[value];
  if (info.producer < 0) return nullptr;
  const Node& node = graph.nodes()[info.producer];
  if (node.op != Op::kConcat || node.inputs.size() < 2) return nullptr;
  const int last = info.type.shape.rank() - 1;
  return std::get<AxisAttributes>(node.attributes).axis == last ? &node : nullptr;
}

}  // namespace

InputCuts input_parts(const Graph& graph) {
  InputCuts cuts;
  std::set<std::string> others;  // read by something that does not allow it
  for (const Node& node : graph.nodes()) {
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const ValueInfo& weight = graph.values()[node.inputs[i]];
      if (weight.source != Source::kWeight) continue;
      const Node* from = nullptr;
      if (node.op == Op::kLinear && i == 1 && weight.name.ends_with(".weight") &&
          weight.parts.empty() && !weight.type.quantized) {
        from = concat_behind(graph, node.inputs[0]);
      }
      if (from == nullptr || cuts.contains(weight.name)) {
        others.insert(weight.name);
        continue;
      }
      for (const int part : from->inputs) {
        cuts[weight.name].push_back(graph.values()[part].type.shape[-1]);
      }
    }
  }
  for (const std::string& weight : others) cuts.erase(weight);
  return cuts;
}

std::string cut_name(const std::string& weight, size_t part) {
  constexpr std::string_view kEnd = ".weight";
  HT_ASSERT(weight.ends_with(kEnd));
  return fmt::format("{}.in{}{}", weight.substr(0, weight.size() - kEnd.size()), part, kEnd);
}

Tensor columns_of(const Tensor& matrix, int64_t begin, int64_t end) {
  const int64_t rows = matrix.shape()[0], columns = matrix.shape()[1];
  HT_ASSERT(matrix.shape().rank() == 2 && 0 <= begin && begin <= end && end <= columns);
  const int64_t size = bits_of(matrix.dtype()) / 8, width = (end - begin) * size;
  Tensor part = Tensor::empty(matrix.dtype(), {rows, end - begin});
  const std::byte* from = matrix.bytes().data() + begin * size;
  std::byte* to = part.mutable_bytes().data();
  for (int64_t r = 0; r < rows; ++r, from += columns * size, to += width) {
    std::copy_n(from, width, to);
  }
  return part;
}

std::shared_ptr<Graph> cut_inputs(const Graph& graph, const InputCuts& cuts) {
  const auto is_cut = [&](const std::string& name) { return cuts.contains(name); };
  const auto add_nodes = [&](Graph& out, std::vector<Value>& at) {
    for (const Node& node : graph.nodes()) {
      const auto region = out.enter_region(node.region);
      const ValueInfo* weight = node.op == Op::kLinear ? &graph.values()[node.inputs[1]] : nullptr;
      if (weight == nullptr || !is_cut(weight->name)) {
        std::vector<Value> inputs;
        for (const int id : node.inputs) inputs.push_back(at[id]);
        const auto values = copy_node(out, graph, node, inputs);
        for (size_t k = 0; k < values.size(); ++k) at[node.outputs[k]] = values[k];
        continue;
      }
      const Node* from = concat_behind(graph, node.inputs[0]);
      HT_ASSERT(from != nullptr);
      const std::vector<int64_t>& widths = cuts.at(weight->name);
      HT_ASSERT(from->inputs.size() == widths.size());
      std::optional<Value> sum;
      for (size_t i = 0; i < widths.size(); ++i) {
        ValueType type = weight->type;
        type.shape = {type.shape[0], widths[i]};
        const Value part = out.weight(cut_name(weight->name, i), type);
        std::optional<Value> bias;  // once
        if (i == 0 && node.inputs.size() > 2) bias = at[node.inputs[2]];
        const Value product = linear(at[from->inputs[i]], part, bias);
        sum = sum ? *sum + product : product;
      }
      at[node.outputs[0]] = *sum;
    }
  };
  return rebuild(graph, add_nodes, {}, is_cut);
}

}  // namespace halftone
