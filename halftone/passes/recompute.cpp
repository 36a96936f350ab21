#include "halftone/passes/recompute.h"

#include <algorithm>
#include <map>
#include <set>

#include "halftone/passes/rewrite.h"

namespace halftone {
namespace {

// Takes about as long as reading its operands.
bool is_cheap(Op op) {
  switch (op) {
    case Op::kAdd:
    case Op::kMul:
    case Op::kAffine:
    case Op::kUnary:
    case Op::kSiluMul:
    case Op::kCast:
    case Op::kRmsNorm:
    case Op::kLayerNorm:
    case Op::kRope:
    case Op::kReshape:
    case Op::kSlice:
    case Op::kPermute:
    case Op::kBroadcast:
    case Op::kQuantize:
    case Op::kDropout:
      return true;
    default:
      return false;
  }
}

class Recomputer {
 public:
  Recomputer(const Graph& graph, Recompute how) : graph_(graph), how_(how) {
    find_readers();
    if (how == Recompute::kNone) return;
    // In the graph's order: what a value is made of is decided before it.
    for (const Node& node : graph.nodes()) {
      for (const int id : node.outputs) decide(id);
    }
  }

  std::shared_ptr<Graph> run() const {
    return rebuild(graph_, [&](Graph& out, std::vector<Value>& at) {
      std::map<std::pair<int, int>, Value> again;  // by region and value
      for (const Node& node : graph_.nodes()) {
        if (!is_live(node)) continue;
        const auto region = out.enter_region(node.region);
        std::vector<Value> inputs;
        for (const int id : node.inputs) {
          const bool drops = is_gradient(node) && dropped_.contains(id);
          inputs.push_back(drops ? compute_again(out, at, id, node.region, again) : at[id]);
        }
        const std::vector<Value> results = copy_node(out, graph_, node, inputs);
        for (size_t i = 0; i < results.size(); ++i) at[node.outputs[i]] = results[i];
      }
    });
  }

 private:
  bool is_gradient(const Node& node) const {
    return node.region >= 0 && graph_.regions()[node.region].gradient;
  }
  const Node* producer(int id) const {
    const int node = graph_.values()[id].producer;
    return node < 0 ? nullptr : &graph_.nodes()[node];
  }
  // Of the forward pass, within a block.
  bool can_be_made_again(int id) const {
    const Node* node = producer(id);
    return node != nullptr && node->region >= 0 && !is_gradient(*node) &&
           (how_ == Recompute::kBlocks || is_cheap(node->op));
  }
  double bytes_of(int id) const {
    const ValueType& type = graph_.values()[id].type;
    return static_cast<double>(type.shape.numel()) * bits_of(type.dtype) / 8;
  }

  // Whether anything comes of it: rules make gradients that nobody asked for.
  bool is_live(const Node& node) const {
    return std::any_of(node.outputs.begin(), node.outputs.end(), [&](int id) { return live_[id]; });
  }

  // The regions whose gradients read a value.
  void find_readers() {
    const auto& nodes = graph_.nodes();
    live_ = graph_.results();
    readers_.resize(graph_.values().size());
    for (size_t i = nodes.size(); i-- > 0;) {
      const Node& node = nodes[i];
      if (!is_live(node)) continue;
      for (const int id : node.inputs) {
        live_[id] = true;
        if (is_gradient(node)) read_by(graph_.regions()[node.region].forward, id);
      }
    }
  }

  // A view is made again for nothing: what counts is what it looks at.
  void read_by(int region, int id) {
    const Node* node = producer(id);
    if (how_ != Recompute::kNone && node != nullptr && node->op == Op::kReshape &&
        can_be_made_again(id)) {
      dropped_.insert(id);
      return read_by(region, node->inputs[0]);
    }
    readers_[id].insert(region);
  }

  bool is_kept(int id) const { return !readers_[id].empty() && !dropped_.contains(id); }

  void decide(int id) {
    if (readers_[id].empty() || !can_be_made_again(id)) return;
    const int region = producer(id)->region;
    if (readers_[id].size() > 1 || *readers_[id].begin() != region) return;  // other blocks' too
    std::set<int> needed;
    find_needed(id, region, needed);
    double more = 0;
    for (const int from : needed) more += is_kept(from) ? 0 : bytes_of(from);
    if (how_ != Recompute::kBlocks && more >= bytes_of(id) && more > 0) return;
    dropped_.insert(id);
    for (const int from : needed) readers_[from].insert(region);
  }

  // What has to be there to make this again.
  void find_needed(int id, int region, std::set<int>& needed) const {
    for (const int from : producer(id)->inputs) {
      const Node* node = producer(from);
      if (node == nullptr) continue;  // a weight, an input or a constant
      const bool within = node->region == region && can_be_made_again(from);
      if (within && !is_kept(from)) {
        find_needed(from, region, needed);
      } else {
        needed.insert(from);
      }
    }
  }

  Value compute_again(Graph& out, const std::vector<Value>& at, int id, int region,
                      std::map<std::pair<int, int>, Value>& again) const {
    const auto found = again.find({region, id});
    if (found != again.end()) return found->second;
    const Node& node = *producer(id);
    const int own = node.region;
    std::vector<Value> inputs;
    for (const int from : node.inputs) {
      const Node* maker = producer(from);
      const bool here =
          maker != nullptr && maker->region == own && can_be_made_again(from) && !is_kept(from);
      inputs.push_back(here ? compute_again(out, at, from, region, again) : at[from]);
    }
    const std::vector<Value> made = copy_node(out, graph_, node, inputs);
    for (size_t i = 0; i < made.size(); ++i) again[{region, node.outputs[i]}] = made[i];
    return again.at({region, id});
  }

  const Graph& graph_;
  Recompute how_;
  std::vector<bool> live_;
  std::vector<std::set<int>> readers_;
  std::set<int> dropped_;
};

}  // namespace

std::shared_ptr<Graph> recompute(const Graph& graph, Recompute how) {
  return Recomputer(graph, how).run();
}

}  // namespace halftone
