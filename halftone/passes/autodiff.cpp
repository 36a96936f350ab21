#include "halftone/passes/autodiff.h"

#include <algorithm>
#include <map>

#include "halftone/base/error.h"
#include "halftone/graph/catalogue.h"
#include "halftone/graph/ops.h"

namespace halftone {
namespace {

// Values on some path from `wrt`: only their gradients matter.
std::vector<bool> depends_on(const Graph& graph, std::span<const Value> wrt) {
  std::vector<bool> marked(graph.values().size(), false);
  for (const Value& value : wrt) marked[value.id()] = true;
  for (const Node& node : graph.nodes()) {
    for (const int input : node.inputs) {
      if (!marked[input]) continue;
      for (const int output : node.outputs) marked[output] = true;
    }
  }
  return marked;
}

// The gradient of what was cut from a value: [begin, end) of an axis.
struct Piece {
  int axis = 0;
  int64_t begin = 0, end = 0;
  Value dy;
  int region = -1;  // of the forward pass
};

// Gradients whose sum is that of the value they were cut from. Pieces that make up all of it are
// put side by side; others are filled up with zeros.
std::vector<Value> join(std::vector<Piece> pieces, const Shape& shape) {
  // The same order in every build, also where pieces begin alike.
  std::sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) {
    return std::pair(a.begin, a.dy.id()) < std::pair(b.begin, b.dy.id());
  });
  const int axis = pieces.front().axis;
  int64_t at = 0;
  bool whole = true;
  std::vector<Value> parts;
  for (const Piece& piece : pieces) {
    whole = whole && piece.axis == axis && piece.begin == at;
    at = piece.end;
    parts.push_back(piece.dy);
  }
  if (whole && at == shape[axis]) return {concat(parts, axis)};
  for (size_t i = 0; i < pieces.size(); ++i) {
    const Piece& piece = pieces[i];
    parts[i] = pad(piece.dy, piece.axis, piece.begin, shape[piece.axis] - piece.end);
  }
  return parts;
}

}  // namespace

std::vector<Value> differentiate(Value loss, std::span<const Value> wrt) {
  Graph& graph = loss.graph();
  require(loss.shape().numel() == 1, "differentiate: the loss has shape {}, not one element",
          loss.shape());
  const std::vector<bool> wanted = depends_on(graph, wrt);
  const auto node_count = static_cast<int>(graph.nodes().size());
  std::map<int, Value> gradient;             // of each value, summed over its uses
  std::map<int, int> regions;                // of gradients, by the region that they are of
  std::map<int, std::vector<Piece>> pieces;  // of each value that slices were cut from
  const auto add_to = [&](int id, Value part) {
    const auto [place, first] = gradient.emplace(id, part);
    if (!first) place->second = place->second + part;
  };
  const auto region_for = [&](int forward) {
    const auto found = regions.find(forward);
    if (found != regions.end()) return found->second;
    const Region of = forward < 0 ? Region{} : graph.regions()[forward];
    const Region made{(of.kind.empty() ? "" : of.kind + " ") + "gradient", of.name, true, forward};
    return regions[forward] = graph.add_region(made);
  };

  Tensor one = Tensor::empty(DType::kF32, loss.shape());
  one.mutable_as<float>()[0] = 1.0f;
  // Once all that was cut from a value has its gradient.
  const auto gather = [&](int id) {
    const auto found = pieces.find(id);
    if (found == pieces.end()) return;
    const auto region = graph.enter_region(region_for(found->second.front().region));
    for (const Value part : join(found->second, graph.value(id).shape())) add_to(id, part);
    pieces.erase(found);
  };

  gradient[loss.id()] = cast(graph.constant("one", one), loss.dtype());

  for (int i = node_count - 1; i >= 0; --i) {
    const Node node = graph.nodes()[i];  // a copy: rules append nodes
    for (const int id : node.outputs) gather(id);
    const auto dy = gradient.find(node.outputs[0]);
    if (dy == gradient.end() || !wanted[node.outputs[0]]) continue;
    if (node.op == Op::kSlice) {
      const auto& how = std::get<AxisAttributes>(node.attributes);
      pieces[node.inputs[0]].push_back({how.axis, how.begin, how.end, dy->second, node.region});
      continue;
    }
    const auto region = graph.enter_region(region_for(node.region));
    const OpInfo& info = op_info(node.op);
    require(info.gradient != nullptr, "{}: has no gradient rule", info.name);
    std::vector<Value> inputs, outputs;
    for (const int id : node.inputs) inputs.push_back(graph.value(id));
    for (const int id : node.outputs) outputs.push_back(graph.value(id));
    const Gradients parts = info.gradient({node.attributes, inputs, outputs, dy->second});
    HT_ASSERT(parts.size() == inputs.size());
    for (size_t k = 0; k < parts.size(); ++k) {
      if (!parts[k] || !wanted[inputs[k].id()]) continue;
      HT_ASSERT(parts[k]->shape() == inputs[k].shape());
      add_to(inputs[k].id(), *parts[k]);
    }
  }

  std::vector<Value> results;
  for (const Value& value : wrt) {
    gather(value.id());
    const auto found = gradient.find(value.id());
    if (found != gradient.end()) {
      results.push_back(found->second);
    } else {
      results.push_back(graph.constant("zero", Tensor::zeros(value.dtype(), value.shape())));
    }
  }
  return results;
}

}  // namespace halftone
