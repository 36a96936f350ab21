#include "halftone/passes/blocks.h"

#include <algorithm>
#include <map>

namespace halftone {
namespace {

constexpr int kNoBlock = -1, kUnread = -2;

int block_of(const Graph& graph, const Node& node) {
  if (node.region < 0) return kNoBlock;
  const Region& region = graph.regions()[node.region];
  return region.gradient ? region.forward : node.region;
}

bool is_product(Op op) { return op == Op::kLinear || op == Op::kLinearInputGrad; }

}  // namespace

std::vector<WeightBlock> weight_blocks(const Graph& graph) {
  std::vector<int> read_in(graph.values().size(), kUnread);
  for (const Node& node : graph.nodes()) {
    const int block = block_of(graph, node);
    for (const int id : node.inputs) {
      const bool alone = read_in[id] == kUnread || read_in[id] == block;
      read_in[id] = alone && is_product(node.op) ? block : kNoBlock;
    }
  }
  std::vector<WeightBlock> blocks;
  std::vector<size_t> index_of(graph.regions().size());
  for (size_t i = 0; i < graph.regions().size(); ++i) {
    index_of[i] = blocks.size();
    if (!graph.regions()[i].gradient) blocks.push_back({graph.regions()[i].name, {}});
  }
  for (const auto& [name, value] : graph.weights()) {
    const int region = read_in[value.id()];
    if (region < 0 || value.rank() < 2) continue;
    const std::vector<std::string>& parts = graph.info(value).parts;
    auto& weights = blocks[index_of[region]].weights;
    if (parts.empty()) {
      weights.push_back(name);
    } else {
      weights.insert(weights.end(), parts.begin(), parts.end());
    }
  }
  std::erase_if(blocks, [](const WeightBlock& block) { return block.weights.empty(); });
  return blocks;
}

CanStack stack_within(std::span<const WeightBlock> blocks) {
  std::map<std::string, size_t> block_of;
  for (size_t i = 0; i < blocks.size(); ++i) {
    for (const std::string& name : blocks[i].weights) block_of[name] = i;
  }
  return [block_of = std::move(block_of)](const std::string& a, const std::string& b) {
    const auto x = block_of.find(a), y = block_of.find(b);
    const bool none = x == block_of.end() && y == block_of.end();
    return none || (x != block_of.end() && y != block_of.end() && x->second == y->second);
  };
}

}  // namespace halftone
