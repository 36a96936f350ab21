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
  std::vector<bool> needed(graph.values().size(), false), used(graph.nodes().size(), false);
  for (const auto& [name, value] : graph.outputs()) needed[value.id()] = true;
  for (size_t i = graph.nodes().size(); i-- > 0;) {
    const Node& node = graph.nodes()[i];
    used[i] =
        std::any_of(node.outputs.begin(), node.outputs.end(), [&](int id) { return needed[id]; });
    if (!used[i]) continue;
    for (const int id : node.inputs) needed[id] = true;
  }
  return used;
}

}  // namespace

MemoryPlan plan_memory(const Graph& graph) {
  const auto count = graph.values().size();
  MemoryPlan plan;
  plan.offset.assign(count, MemoryPlan::kOutside);
  plan.storage.resize(count);
  plan.used = used_nodes(graph);
  for (size_t id = 0; id < count; ++id) plan.storage[id] = static_cast<int>(id);

  std::vector<Lifetime> lifetimes(count);
  const auto end = static_cast<int>(graph.nodes().size());
  for (int i = 0; i < end; ++i) {
    const Node& node = graph.nodes()[i];
    if (!plan.used[i]) continue;
    if (node.op == Op::kReshape) plan.storage[node.outputs[0]] = plan.storage[node.inputs[0]];
    for (const int id : node.inputs) lifetimes[plan.storage[id]].last = i;
    for (const int id : node.outputs) {
      if (plan.storage[id] != id) continue;
      const int64_t bytes = bytes_of(graph.values()[id].type);
      lifetimes[id] = {id, (bytes + kAlignment - 1) / kAlignment * kAlignment, i, i};
    }
  }
  for (const auto& [name, value] : graph.outputs()) {
    lifetimes[plan.storage[value.id()]].last = end;
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
  for (size_t id = 0; id < count; ++id) plan.offset[id] = plan.offset[plan.storage[id]];
  return plan;
}

}  // namespace halftone
