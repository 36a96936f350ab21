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
  return quantized_layout(*type.quantized, rows, cols, type.items()).bytes;
}

// Nodes that some output of the graph needs; `needed` becomes true for the values that these read.
std::vector<bool> used_nodes(const Graph& graph, std::vector<bool>& needed) {
  std::vector<bool> used(graph.nodes().size(), false);
  for (size_t i = graph.nodes().size(); i-- > 0;) {
    const Node& node = graph.nodes()[i];
    used[i] =
        std::any_of(node.outputs.begin(), node.outputs.end(), [&](int id) { return needed[id]; });
    if (!used[i]) continue;
    for (const int id : node.inputs) needed[id] = true;
  }
  return used;
}

// Kernels of these leave out a result that has no place.
bool leaves_out_results(Op op) {
  return op == Op::kRmsNormGrad || op == Op::kGroupNormGrad || op == Op::kPadRowsGrad;
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
      // Queries, keys, values and their gradient; a bias is read as one piece.
      const size_t strided = reader->op == Op::kAttention ? 3 : 4;
      if (reader->op == Op::kAttention || reader->op == Op::kAttentionGrad) {
        return std::find(reader->inputs.begin() + static_cast<std::ptrdiff_t>(strided),
                         reader->inputs.end(), id) == reader->inputs.end();
      }
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

// What is before an axis has one index alone: pieces along it lie one after the other.
bool is_outermost(const Shape& shape, int axis) {
  int64_t before = 1;
  for (int i = 0; i < axis; ++i) before *= shape[i];
  return before == 1;
}

// Which value's bytes each value shares, and where in them it begins.
class Sharing {
 public:
  Sharing(const Graph& graph, MemoryPlan& plan)
      : graph_(graph), plan_(plan), shift_(graph.values().size(), 0), with_(graph.values().size()) {
    plan_.storage.resize(graph.values().size());
    for (size_t id = 0; id < plan_.storage.size(); ++id) plan_.storage[id] = static_cast<int>(id);
  }

  int64_t shift(int id) const { return shift_[id]; }

  // Whether a product may write over what it adds to: that is all of something computed, and
  // neither its other operands nor anything later reads any of it.
  bool ends_in(const Node& node, int index, const std::vector<int>& last_read) const {
    if (!adds_operand(node) || node.op == Op::kConv2d) return false;
    const int id = node.inputs.back(), root = plan_.storage[id];
    const auto bytes = [&](int of) { return bytes_of(graph_.values()[of].type); };
    if (!is_plain(id) || bytes(root) != bytes(node.outputs[0])) return false;
    for (size_t i = 0; i + 1 < node.inputs.size(); ++i) {
      if (plan_.storage[node.inputs[i]] == root) return false;
    }
    const auto ends = [&](int of) { return last_read[of] <= index; };
    return ends(root) && std::all_of(with_[root].begin(), with_[root].end(), ends);
  }

  void share(int to, int from, int64_t bytes) {
    const int root = plan_.storage[from];
    plan_.storage[to] = root;
    plan_.token_stride[to] = plan_.token_stride[from];
    shift_[to] = shift_[from] + bytes;
    with_[root].push_back(to);
  }

  // A part of something computed that lies in one piece where wide accesses may start.
  bool is_part(const Node& slice) const {
    if (slice.op != Op::kSlice) return false;
    const ValueInfo& from = graph_.values()[slice.inputs[0]];
    const auto& how = std::get<AxisAttributes>(slice.attributes);
    return is_plain(slice.inputs[0]) && is_outermost(from.type.shape, how.axis) &&
           (shift_[slice.inputs[0]] + begin_of(slice)) % kAlignment == 0;
  }
  int64_t begin_of(const Node& slice) const {
    const ValueType& from = graph_.values()[slice.inputs[0]].type;
    const auto& how = std::get<AxisAttributes>(slice.attributes);
    return bytes_before(from, how.axis, how.begin);
  }

  // Pieces of a concat that are computed where they are to lie; true if that is all of them.
  bool place_pieces(const Node& concat, std::vector<Lifetime>& lifetimes) {
    const int to = concat.outputs[0];
    const ValueType& type = graph_.values()[to].type;
    const int axis = std::get<AxisAttributes>(concat.attributes).axis;
    if (type.quantized || !is_outermost(type.shape, axis)) return false;
    bool all = true;
    int64_t index = 0;
    for (const int id : concat.inputs) {
      const int64_t begin = bytes_before(type, axis, index);
      index += graph_.values()[id].type.shape[axis];
      const int root = plan_.storage[id];
      const bool whole = is_plain(id) && shift_[id] == 0 && root != to &&
                         bytes_of(graph_.values()[root].type) == bytes_of(graph_.values()[id].type);
      if (!whole || begin % kAlignment != 0) {
        all = false;
        continue;
      }
      for (const int other : with_[root]) move(other, to, begin);
      with_[root].clear();
      move(root, to, begin);
      lifetimes[to].first = std::min(lifetimes[to].first, lifetimes[root].first);
      lifetimes[to].last = std::max(lifetimes[to].last, lifetimes[root].last);
      lifetimes[root].value = -1;
    }
    return all;
  }

 private:
  static int64_t bytes_before(const ValueType& type, int axis, int64_t index) {
    int64_t values = index;
    for (int i = axis + 1; i < type.shape.rank(); ++i) values *= type.shape[i];
    return values * bits_of(type.dtype) / 8;
  }
  // Computed, and in one piece.
  bool is_plain(int id) const {
    const int root = plan_.storage[id];
    return graph_.values()[root].source == Source::kNode && plan_.token_stride[id] == 0 &&
           !graph_.values()[root].type.quantized && !graph_.values()[id].type.quantized;
  }
  void move(int id, int to, int64_t bytes) {
    plan_.storage[id] = to;
    shift_[id] += bytes;
    with_[to].push_back(id);
  }

  const Graph& graph_;
  MemoryPlan& plan_;
  std::vector<int64_t> shift_;          // bytes from the start of the shared storage
  std::vector<std::vector<int>> with_;  // by storage: others that share it
};

}  // namespace

MemoryPlan plan_memory(const Graph& graph, bool strided_attention) {
  const auto count = graph.values().size();
  MemoryPlan plan;
  plan.offset.assign(count, MemoryPlan::kOutside);
  plan.token_stride.assign(count, 0);
  std::vector<bool> needed = graph.results();
  plan.runs = used_nodes(graph, needed);
  Sharing sharing(graph, plan);
  const AttentionColumns columns(graph);

  std::vector<Lifetime> lifetimes(count);
  const auto end = static_cast<int>(graph.nodes().size());
  std::vector<int> last_read(count, -1);  // of each value, by a node or after all of them
  for (int i = 0; i < end; ++i) {
    for (const int id : graph.nodes()[i].inputs) last_read[id] = i;
  }
  const std::vector<bool> results = graph.results();
  for (size_t id = 0; id < count; ++id) {
    if (results[id]) last_read[id] = end;
  }
  for (int i = 0; i < end; ++i) {
    const Node& node = graph.nodes()[i];
    if (!plan.runs[i]) continue;
    const bool left_in_place = strided_attention && columns.contains(node);
    if (node.op == Op::kReshape || left_in_place || sharing.is_part(node)) {
      const int from = node.inputs[0], to = node.outputs[0];
      const ValueType& type = graph.values()[from].type;
      plan.runs[i] = false;
      if (left_in_place) {
        const int64_t begin = std::get<AxisAttributes>(node.attributes).begin;
        sharing.share(to, from, begin * bits_of(type.dtype) / 8);
        plan.token_stride[to] = type.shape[2];
      } else {
        sharing.share(to, from, node.op == Op::kSlice ? sharing.begin_of(node) : 0);
      }
    }
    if (sharing.ends_in(node, i, last_read)) sharing.share(node.outputs[0], node.inputs.back(), 0);
    for (const int id : node.inputs) lifetimes[plan.storage[id]].last = i;
    for (const int id : node.outputs) {
      if (plan.storage[id] != id || (!needed[id] && leaves_out_results(node.op))) continue;
      const int64_t bytes = bytes_of(graph.values()[id].type);
      lifetimes[id] = {id, (bytes + kAlignment - 1) / kAlignment * kAlignment, i, i};
    }
    if (node.op == Op::kConcat && sharing.place_pieces(node, lifetimes)) plan.runs[i] = false;
  }
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
    plan.offset[id] =
        start == MemoryPlan::kOutside ? start : start + sharing.shift(static_cast<int>(id));
  }
  return plan;
}

}  // namespace halftone
