#include "halftone/passes/lora.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>

#include "halftone/base/error.h"
#include "halftone/graph/ops.h"
#include "halftone/passes/rewrite.h"

namespace halftone {
namespace {

std::string stem(const std::string& weight) {
  constexpr std::string_view kSuffix = ".weight";
  HT_ASSERT(weight.ends_with(kSuffix));
  return weight.substr(0, weight.size() - kSuffix.size());
}

}  // namespace

std::string lora_strength_name(size_t slot) { return fmt::format("lora.strength.{}", slot); }
std::string lora_dropout_name(size_t slot) { return fmt::format("lora.dropout.{}", slot); }
std::string lora_down_name(const std::string& weight, size_t slot) {
  return fmt::format("{}.{}.lora_A", stem(weight), slot);
}
std::string lora_up_name(const std::string& weight, size_t slot) {
  return fmt::format("{}.{}.lora_B", stem(weight), slot);
}

namespace {

Shape with_last(const Shape& shape, std::initializer_list<int64_t> last) {
  const auto before = shape.dims().first(static_cast<size_t>(shape.rank() - 1));
  std::vector<int64_t> dims(before.begin(), before.end());
  dims.insert(dims.end(), last);
  return Shape(dims);
}

class LoraAttacher {
 public:
  LoraAttacher(const Graph& graph, std::span<const LoraSites> adapters)
      : graph_(graph), adapters_(adapters), strengths_(adapters.size()), keys_(adapters.size()) {
    for (const Node& node : graph.nodes()) {
      if (node.op != Op::kLinear) continue;
      for (size_t slot = 0; slot < adapters.size(); ++slot) {
        if (is_adapted(node, slot)) groups_[place_of(node, slot)].push_back(weight_of(node).name);
      }
    }
  }

  std::shared_ptr<Graph> run() {
    Rewrite how;
    how.node = [&](Graph& out, const Node& node, std::span<const Value> inputs) {
      std::vector<Value> result = copy_node(out, graph_, node, inputs);
      const bool adaptable = node.op == Op::kLinear || node.op == Op::kConv2d;
      for (size_t slot = 0; slot < adapters_.size() && adaptable; ++slot) {
        if (!is_adapted(node, slot)) continue;
        result[0] = result[0] + (node.op == Op::kLinear ? linear(hidden(out, node, inputs[0], slot),
                                                                 up(out, node, slot))
                                                        : convolved(out, node, inputs[0], slot));
        ++attached_;
      }
      return result;
    };
    std::shared_ptr<Graph> out = rewrite(graph_, how);
    size_t wanted = 0;
    for (const LoraSites& sites : adapters_) wanted += sites.weights.size();
    if (attached_ < wanted) {
      throw Error(ErrorCode::kInvalidInput, "lora",
                  "a linear or convolution that an adapter changes is not there");
    }
    return out;
  }

 private:
  // Adapted linears of a block that read the same value: by it, the block and the adapter.
  using Place = std::tuple<int, int, size_t>;

  const ValueInfo& weight_of(const Node& node) const { return graph_.values()[node.inputs[1]]; }
  bool is_adapted(const Node& node, size_t slot) const {
    const ValueInfo& weight = weight_of(node);
    return weight.source == Source::kWeight && adapters_[slot].weights.contains(weight.name);
  }
  static Place place_of(const Node& node, size_t slot) {
    return {node.inputs[0], node.region, slot};
  }

  Value strength(Graph& out, size_t slot, int64_t batch) {
    auto& made = strengths_[slot];
    if (!made) {
      made = out.input(lora_strength_name(slot), {{batch, adapters_[slot].rank}, DType::kF32, {}});
    }
    HT_ASSERT(made->dim(0) == batch);
    return *made;
  }
  Value down(Graph& out, const std::string& weight, size_t slot, int64_t columns) const {
    return out.weight(lora_down_name(weight, slot),
                      {{adapters_[slot].rank, columns}, DType::kF32, {}});
  }
  Value up(Graph& out, const Node& node, size_t slot) const {
    const ValueInfo& weight = weight_of(node);
    const int64_t rows = weight.type.shape[0], rank = adapters_[slot].rank;
    const Shape shape = node.op == Op::kLinear ? Shape{rows, rank} : Shape{rows, rank, 1, 1};
    return out.weight(lora_up_name(weight.name, slot), {shape, DType::kF32, {}});
  }

  Value convolved(Graph& out, const Node& node, Value x, size_t slot) {
    const ValueInfo& weight = weight_of(node);
    const Shape& kernel = weight.type.shape;
    const int64_t batch = x.dim(0), rank = adapters_[slot].rank;
    const ValueType down{{rank, kernel[1], kernel[2], kernel[3]}, DType::kF32, {}};
    const Value few = conv2d(x, out.weight(lora_down_name(weight.name, slot), down), std::nullopt,
                             std::get<ConvAttributes>(node.attributes));
    return conv2d(few * reshape(strength(out, slot, batch), {batch, rank, 1, 1}),
                  up(out, node, slot), std::nullopt, {});
  }

  // What goes up again: x through the adapter's first matrix, times its strength.
  Value hidden(Graph& out, const Node& node, Value x, size_t slot) {
    const LoraSites& sites = adapters_[slot];
    const std::string& weight = weight_of(node).name;
    HT_ASSERT(x.rank() >= 2);
    const int64_t batch = batch_items(x.shape()), rank = sites.rank;
    std::vector<int64_t> items(static_cast<size_t>(x.rank()), 1);
    items.front() = batch;
    const Shape per_row = with_last(Shape(items), {rank});
    const std::vector<std::string>& group = groups_.at(place_of(node, slot));
    if (sites.dropout > 0 || group.size() == 1) {
      Value read = x;
      if (sites.dropout > 0) {  // each linear's own
        auto& drawn = keys_[slot];
        if (!drawn) drawn = out.input(lora_dropout_name(slot), {{batch, 4}, DType::kI32, {}});
        read = dropout(x, *drawn, {sites.dropout, static_cast<uint32_t>(attached_)});
      }
      return linear(read, down(out, weight, slot, x.dim(-1))) *
             reshape(strength(out, slot, batch), per_row);
    }
    // Reading x takes longer than multiplying by so few columns: once for all that read it.
    const auto count = static_cast<int64_t>(group.size());
    auto& shared = shared_[place_of(node, slot)];
    if (!shared) {
      std::vector<Value> downs;
      for (const std::string& name : group) downs.push_back(down(out, name, slot, x.dim(-1)));
      const Value all = linear(x, concat(downs, 0));
      const Shape apart = with_last(all.shape(), {count, rank});
      shared = reshape(
          reshape(all, apart) * reshape(strength(out, slot, batch), with_last(per_row, {1, rank})),
          all.shape());
    }
    const auto index = std::find(group.begin(), group.end(), weight) - group.begin();
    return slice(*shared, x.rank() - 1, index * rank, (index + 1) * rank);
  }

  const Graph& graph_;
  std::span<const LoraSites> adapters_;
  std::map<Place, std::vector<std::string>> groups_;  // weights, in the graph's order
  std::map<Place, std::optional<Value>> shared_;
  std::vector<std::optional<Value>> strengths_, keys_;
  size_t attached_ = 0;
};

}  // namespace

std::shared_ptr<Graph> attach_lora(const Graph& graph, std::span<const LoraSites> adapters) {
  return LoraAttacher(graph, adapters).run();
}

}  // namespace halftone
