#include "halftone/passes/cut.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "halftone/base/error.h"
#include "halftone/passes/rewrite.h"

namespace halftone {
namespace {

class Cutter {
 public:
  Cutter(const Graph& graph, const Cut& how)
      : graph_(graph),
        part_of_(graph.nodes().size(), kNowhere),
        fixed_(graph.values().size(), false) {
    HT_ASSERT(graph.states().empty() && how.part <= how.ends.size());
    for (const auto& [name, value] : graph.outputs()) {
      HT_ASSERT(graph.info(value).source == Source::kNode);
      HT_ASSERT(names_.emplace(value.id(), name).second);
    }
    std::vector<std::string> all;
    for (const auto& [name, value] : graph.outputs()) all.push_back(name);
    assign(all, how.ends.size());
    for (size_t part = how.ends.size(); part-- > 0;) assign(how.ends[part], part);
    for (const Node& node : graph.nodes()) {
      const bool fixed = std::all_of(node.inputs.begin(), node.inputs.end(), [&](int id) {
        const Source source = graph.values()[id].source;
        return fixed_[id] || source == Source::kWeight || source == Source::kConstant;
      });
      for (const int id : node.outputs) fixed_[id] = fixed;
    }
  }

  std::shared_ptr<Graph> part(size_t wanted) {
    const std::vector<bool> kept = nodes_of(wanted);
    auto out = std::make_shared<Graph>();
    out->set_regions(graph_.regions());
    std::map<int, Value> at;
    for (size_t i = 0; i < graph_.nodes().size(); ++i) {
      if (!kept[i]) continue;
      const Node& node = graph_.nodes()[i];
      std::vector<Value> inputs;
      for (const int id : node.inputs) {
        if (!at.contains(id)) at[id] = given(*out, id);
        inputs.push_back(at.at(id));
      }
      const auto region = out->enter_region(node.region);
      const std::vector<Value> results = copy_node(*out, graph_, node, inputs);
      for (size_t k = 0; k < results.size(); ++k) at[node.outputs[k]] = results[k];
    }
    for (const auto& [name, value] : graph_.outputs()) {
      const int id = value.id();
      if (part_of(id) == wanted) out->output(name, at.at(id));
    }
    for (size_t i = 0; i < graph_.nodes().size(); ++i) {
      if (part_of_[i] <= wanted || part_of_[i] == kNowhere) continue;
      for (const int id : graph_.nodes()[i].inputs) {
        if (!crosses(id) || part_of(id) != wanted || names_.contains(id)) continue;
        if (!out->outputs().contains(name_of(id))) out->output(name_of(id), at.at(id));
      }
    }
    return out;
  }

 private:
  static constexpr size_t kNowhere = SIZE_MAX;  // no output needs it

  void assign(const std::vector<std::string>& ends, size_t part) {
    std::vector<bool> needed(graph_.values().size(), false);
    for (const std::string& name : ends) needed[graph_.outputs().at(name).id()] = true;
    for (size_t i = graph_.nodes().size(); i-- > 0;) {
      const Node& node = graph_.nodes()[i];
      if (std::none_of(node.outputs.begin(), node.outputs.end(),
                       [&](int id) { return needed[id]; })) {
        continue;
      }
      part_of_[i] = part;
      for (const int id : node.inputs) needed[id] = true;
    }
  }

  size_t part_of(int id) const { return part_of_[graph_.values()[id].producer]; }
  // Computed, and by one part for the others.
  bool crosses(int id) const { return graph_.values()[id].source == Source::kNode && !fixed_[id]; }
  // By the node that computes it: what is added behind all of a graph's nodes changes no name.
  std::string name_of(int id) const {
    const auto found = names_.find(id);
    if (found != names_.end()) return found->second;
    const int producer = graph_.values()[id].producer;
    return fmt::format("crossing.{}.{}", producer, id - graph_.nodes()[producer].outputs[0]);
  }

  // Nodes of the part, and those that it repeats because they follow from weights.
  std::vector<bool> nodes_of(size_t wanted) const {
    std::vector<bool> kept(graph_.nodes().size(), false);
    std::vector<bool> needed(graph_.values().size(), false);
    for (size_t i = graph_.nodes().size(); i-- > 0;) {
      const Node& node = graph_.nodes()[i];
      const bool fixed = fixed_[node.outputs[0]];
      const bool is_read = std::any_of(node.outputs.begin(), node.outputs.end(),
                                       [&](int id) { return needed[id] || names_.contains(id); });
      kept[i] = fixed ? is_read : part_of_[i] == wanted;
      if (!kept[i]) continue;
      for (const int id : node.inputs) needed[id] = true;
    }
    return kept;
  }

  // What a node of the part reads and no earlier node of it computes.
  Value given(Graph& out, int id) const {
    const ValueInfo& info = graph_.values()[id];
    switch (info.source) {
      case Source::kWeight:
        HT_ASSERT(info.parts.empty());  // weights are stacked after this
        return out.weight(info.name, info.type);
      case Source::kConstant:
        return out.constant(info.name, info.constant);
      case Source::kInput:
        return out.input(info.name, info.type);
      default:
        HT_ASSERT(!info.type.quantized);
        return out.input(name_of(id), info.type);
    }
  }

  const Graph& graph_;
  std::vector<size_t> part_of_;       // of each node
  std::vector<bool> fixed_;           // by value: follows from weights alone
  std::map<int, std::string> names_;  // of values that are outputs
};

}  // namespace

std::shared_ptr<Graph> cut(const Graph& graph, const Cut& how) {
  return Cutter(graph, how).part(how.part);
}

}  // namespace halftone
