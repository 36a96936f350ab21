#include "halftone/models/single_file_names.h"

#include <algorithm>

#include "halftone/base/error.h"

namespace halftone {
namespace {

StoredAs by_table(std::string_view name, std::span<const Renamed> table,
                  const std::string& before) {
  for (const auto& [from, to, rows] : table) {
    if (name.starts_with(from)) {
      return {before + std::string(to) + std::string(name.substr(from.size())), rows};
    }
  }
  return {before + std::string(name)};
}

}  // namespace

StoredAs renamed(std::string_view name, const RenamedModel& table) {
  for (const auto& [from, to, inside] : table.blocks) {
    if (!name.starts_with(from)) continue;
    const size_t number = name.find('.', from.size());
    if (number == std::string_view::npos) continue;
    const auto index = name.substr(from.size(), number + 1 - from.size());
    return by_table(name.substr(number + 1), inside, std::string(to) + std::string(index));
  }
  return by_table(name, table.outside, "");
}

std::optional<std::string> prefix_before(const Checkpoint& checkpoint, std::string_view mark) {
  constexpr std::string_view kPrefixes[] = {"", "model.diffusion_model.", "diffusion_model.",
                                            "transformer."};
  for (const Checkpoint::Item& item : checkpoint.items()) {
    const std::string& name = item.entry->name;
    for (const std::string_view prefix : kPrefixes) {
      if (name.starts_with(prefix) && name.substr(prefix.size()).starts_with(mark)) {
        return std::string(prefix);
      }
    }
  }
  return std::nullopt;
}

bool any_name(const Checkpoint& checkpoint, const std::function<bool(std::string_view)>& is_it) {
  return std::any_of(checkpoint.items().begin(), checkpoint.items().end(),
                     [&](const Checkpoint::Item& item) { return is_it(item.entry->name); });
}

bool is_of_another_component(std::string_view name) {
  for (const std::string_view start :
       {"vae.", "text_encoders.", "first_stage_model.", "cond_stage_model.", "conditioner."}) {
    if (name.starts_with(start)) return true;
  }
  return false;
}

Shape StoredShapes::of(const std::string& weight, int rank) const {
  const Checkpoint::Item* item = find(weight);
  if (item == nullptr || item->entry->shape.rank() != rank) {
    throw Error(ErrorCode::kInvalidInput, where(), "is no {}: there is no tensor '{}' of rank {}",
                title_, names_.stored_as(weight).name, rank);
  }
  return item->entry->shape;
}

int64_t StoredShapes::count(std::string_view before, std::string_view after) const {
  int64_t n = 0;
  while (find(fmt::format("{}{}{}", before, n, after)) != nullptr) ++n;
  return n;
}

LoraTargets lora_targets(const Graph& graph, const ModuleAliases& aliases) {
  LoraTargets targets;
  const auto path_of = [](std::string_view weight) {
    return std::string(weight.substr(0, weight.size() - std::string_view(".weight").size()));
  };
  for (const Node& node : graph.nodes()) {
    if (node.op != Op::kLinear && node.op != Op::kConv2d) continue;
    const ValueInfo& info = graph.values()[node.inputs[1]];
    const std::string path = path_of(info.name);
    if (targets.contains(path)) continue;
    targets[path] = {{info.name, info.type.shape}};
    for (const StoredAs& alias : aliases(info.name)) {
      if (alias.name == info.name) continue;
      auto& list = targets[path_of(alias.name)];
      if (!list.empty() && list.back().weight == info.name) continue;  // by another table
      list.push_back({info.name, info.type.shape, alias.rows});
    }
  }
  return targets;
}

}  // namespace halftone
