#include "halftone/passes/feed.h"

#include <optional>
#include <vector>

#include "halftone/base/error.h"
#include "halftone/passes/rewrite.h"

namespace halftone {
namespace {

class Feeding {
 public:
  Feeding(const Graph& graph, std::span<const Feeder> feeders) {
    std::vector<Region> regions;
    for (const Feeder& feeder : feeders) {
      first_region_.push_back(static_cast<int>(regions.size()));
      const auto& own = feeder.graph->regions();
      regions.insert(regions.end(), own.begin(), own.end());
    }
    first_region_.push_back(static_cast<int>(regions.size()));
    regions.insert(regions.end(), graph.regions().begin(), graph.regions().end());
    out_->set_regions(regions);
  }

  // All of a graph, with these values in place of inputs. Returns its outputs.
  NamedValues add(const Graph& graph, size_t index, const std::string& prefix,
                  const NamedValues& given) {
    HT_ASSERT(graph.states().empty());
    std::vector<std::optional<Value>> at(graph.values().size());
    const auto value = [&](int id) {
      if (!at[id]) at[id] = outside(graph.values()[id], prefix, given);
      return *at[id];
    };
    for (const Node& node : graph.nodes()) {
      std::vector<Value> inputs;
      for (const int id : node.inputs) inputs.push_back(value(id));
      const auto region =
          out_->enter_region(node.region < 0 ? -1 : first_region_[index] + node.region);
      const std::vector<Value> results = copy_node(*out_, graph, node, inputs);
      for (size_t i = 0; i < results.size(); ++i) at[node.outputs[i]] = results[i];
    }
    NamedValues outputs;
    for (const auto& [name, output] : graph.outputs()) outputs.emplace(name, value(output.id()));
    return outputs;
  }

  const std::shared_ptr<Graph>& out() const { return out_; }

 private:
  Value outside(const ValueInfo& info, const std::string& prefix, const NamedValues& given) {
    switch (info.source) {
      case Source::kInput: {
        const auto found = given.find(info.name);
        if (found == given.end()) return out_->input(prefix + info.name, info.type);
        HT_ASSERT(found->second.type() == info.type);
        return found->second;
      }
      case Source::kWeight:
        HT_ASSERT(info.parts.empty());  // weights are stacked after this
        return out_->weight(prefix + info.name, info.type);
      default:
        HT_ASSERT(info.source == Source::kConstant);
        return out_->constant(prefix + info.name, info.constant);
    }
  }

  std::shared_ptr<Graph> out_ = std::make_shared<Graph>();
  std::vector<int> first_region_;  // of each feeder, and of the graph
};

}  // namespace

std::shared_ptr<Graph> feed(const Graph& graph, std::span<const Feeder> feeders,
                            const JoinFeeders& join) {
  Feeding feeding(graph, feeders);
  std::vector<NamedValues> results;
  for (size_t i = 0; i < feeders.size(); ++i) {
    results.push_back(feeding.add(*feeders[i].graph, i, feeders[i].prefix, {}));
  }
  for (const auto& [name, value] : feeding.add(graph, feeders.size(), "", join(results))) {
    feeding.out()->output(name, value);
  }
  return feeding.out();
}

}  // namespace halftone
