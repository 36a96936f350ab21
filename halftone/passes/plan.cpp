#include "halftone/passes/plan.h"

#include <algorithm>

#include "halftone/tensor/quantized_tensor.h"

namespace halftone {
namespace {

constexpr int64_t kAlignment = 256;  // of every value: the widest accesses of any backend

struct Lifetime {
  int value = -1;
  int64_t bytes = 0;
  int first = 0, last = 0;  // nodes, inclusive
};

bool overlap(const Lifetime& a, const Lifetime& b) {
  return a.first <= b.last && b.first <= a.last;
}

int64_t bytes_of(const ValueType& type) {
  if (!type.quantized) return type.shape.checked_bytes(type.dtype).value();
  const int64_t cols = type.shape[-1], rows = cols == 0 ? 0 : type.shape.numel() / cols;
  return quantized_layout(*type.quantized, rows, cols, batch_items(type.shape)).bytes;
}

// Nodes that some output of the graph needs.
std::vector<bool> used_nodes(const Graph& graph) {
  std::vector<bool> needed = graph.results(), used(graph.nodes().size(), false);
  for (size_t i = graph.nodes().size(); i-- > 0;) {
    const Node& node = graph.nodes()[i];
    used[i] =
        std::any_of(node.outputs.begin(), node.outputs.end(), [&](int id) { return needed[id]; });
    if (!used[i]) continue;
    for (const int id : node.inputs) needed[id] = true;
  }
  return used;
}

// Columns [begin, end) of [B, T, C] whose readers are all attention, perhaps as [B, T, H, D].
class AttentionColumns {
 public:
  explicit AttentionColumns(const Graph& graph)
      : graph_(graph), readers_(graph.values().size()), is_result_(graph.results()) {
    for (const Node& node : graph.nodes()) {
      for (const int id : node.inputs) readers_[id].push_back(&node);
    }
  }

  bool contains(const Node& node) const {
    if (node.op != Op::kSlice) return false;
    const ValueInfo& source = graph_.values()[node.inputs[0]];
    const Shape& shape = source.type.shape;
    return std::get<AxisAttributes>(node.attributes).axis == 2 && shape.rank() == 3 &&
           source.source == Source::kNode && only_attention_reads(node.outputs[0]);
  }

 private:
  bool only_attention_reads(int id) const {
    if (is_result_[id]) return false;
    const Shape& shape = graph_.values()[id].type.shape;
    return std::all_of(readers_[id].begin(), readers_[id].end(), [&](const Node* reader) {
      if (reader->op == Op::kAttention || reader->op == Op::kAttentionGrad) return true;
      if (reader->op != Op::kReshape) return false;
      const Shape& heads = graph_.values()[reader->outputs[0]].type.shape;
      return heads.rank() == 4 && heads[0] == shape[0] && heads[1] == shape[1] &&
             only_attention_reads(reader->outputs[0]);
    });
  }

  const Graph& graph_;
  std::vector<std::vector<const Node*>> readers_;
  std::vector<bool> is_result_;
};

}  // namespace

MemoryPlan plan_memory(const Graph& graph, bool strided_attention) {
  const auto count = graph.values().size();
  MemoryPlan plan;
  plan.offset.assign(count, MemoryPlan::kOutside);
  plan.storage.resize(count);
  plan.token_stride.assign(count, 0);
  plan.runs = used_nodes(graph);
  for (size_t id = 0; id < count; ++id) plan.storage[id] = static_cast<int>(id);
  std::vector<int64_t> shift(count, 0);  // bytes from the start of the shared storage
  const AttentionColumns columns(graph);

  std::vector<Lifetime> lifetimes(count);
  const auto end = static_cast<int>(graph.nodes().size());
  for (int i = 0; i < end; ++i) {
    const Node& node = graph.nodes()[i];
    if (!plan.runs[i]) continue;
    const bool left_in_place = strided_attention && columns.contains(node);
    if (node.op == Op::kReshape || left_in_place) {
      const int from = node.inputs[0], to = node.outputs[0];
      plan.runs[i] = false;
      plan.storage[to] = plan.storage[from];
      plan.token_stride[to] = plan.token_stride[from];
      shift[to] = shift[from];
      if (left_in_place) {
        const ValueType& type = graph.values()[from].type;
        const int64_t begin = std::get<AxisAttributes>(node.attributes).begin;
        plan.token_stride[to] = type.shape[2];
        shift[to] += begin * bits_of(type.dtype) / 8;
      }
    }
    for (const int id : node.inputs) lifetimes[plan.storage[id]].last = i;
    for (const int id : node.outputs) {
      if (plan.storage[id] != id) continue;
      const int64_t bytes = bytes_of(graph.values()[id].type);
      lifetimes[id] = {id, (bytes + kAlignment - 1) / kAlignment * kAlignment, i, i};
    }
  }
  const std::vector<bool> results = graph.results();
  for (size_t id = 0; id < count; ++id) {
    if (results[id]) lifetimes[plan.storage[id]].last = end;
  }

  // Largest first, each at the lowest offset where nothing that lives at the same time lies.
  std::vector<Lifetime> order;
  for (const Lifetime& lifetime : lifetimes) {
    if (lifetime.value >= 0) order.push_back(lifetime);
  }
  std::sort(order.begin(), order.end(), [](const Lifetime& a, const Lifetime& b) {
    return a.bytes != b.bytes ? a.bytes > b.bytes : a.value < b.value;
  });
  std::vector<Lifetime> placed;
  for (const Lifetime& lifetime : order) {
    std::vector<std::pair<int64_t, int64_t>> taken;
    for (const Lifetime& other : placed) {
      if (!overlap(lifetime, other)) continue;
      const int64_t offset = plan.offset[other.value];
      taken.emplace_back(offset, offset + other.bytes);
    }
    std::sort(taken.begin(), taken.end());
    int64_t offset = 0;
    for (const auto& [begin, stop] : taken) {
      if (offset + lifetime.bytes <= begin) break;
      offset = std::max(offset, stop);
    }
    plan.offset[lifetime.value] = offset;
    plan.arena_bytes = std::max(plan.arena_bytes, offset + lifetime.bytes);
    placed.push_back(lifetime);
  }
  for (size_t id = 0; id < count; ++id) {
    const int64_t start = plan.offset[plan.storage[id]];
    plan.offset[id] = start == MemoryPlan::kOutside ? start : start + shift[id];
  }
  return plan;
}

}  // namespace halftone
