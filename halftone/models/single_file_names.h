// Names of weights in files of tools other than diffusers, as tables: parts that are called
// something else, and rows of a tensor that holds several weights.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "halftone/io/checkpoint.h"
#include "halftone/models/lora.h"
#include "halftone/models/weights.h"

namespace halftone {

// The start of a name in diffusers' layout, and in single files.
struct Renamed {
  std::string_view from, to;
  StoredRows rows = {};
};
// Blocks with numbers, and what is renamed inside of each: "transformer_blocks." is "joint_blocks."
struct RenamedBlocks {
  std::string_view from, to;
  std::span<const Renamed> inside;
};
struct RenamedModel {
  std::span<const Renamed> outside;  // of blocks
  std::span<const RenamedBlocks> blocks;
};
StoredAs renamed(std::string_view weight, const RenamedModel& table);

// What stands before a tensor whose name starts with the mark, in files that hold more than one
// network or call this one by a name; nothing where there is no such tensor.
std::optional<std::string> prefix_before(const Checkpoint& checkpoint, std::string_view mark);

// Whether any tensor's name is like that.
bool any_name(const Checkpoint& checkpoint, const std::function<bool(std::string_view)>& is_it);

// A tensor of the text encoders or the VAE, in a file that holds a whole model.
bool is_of_another_component(std::string_view name);

// Shapes of a file's tensors, by the names of weights: what a config would say.
class StoredShapes {
 public:
  StoredShapes(const Checkpoint& checkpoint, const WeightNames& names, std::string_view title)
      : checkpoint_(checkpoint), names_(names), title_(title) {}

  const Checkpoint::Item* find(const std::string& weight) const {
    return checkpoint_.find(names_.stored_as(weight).name);
  }
  // An Error where there is none of this rank.
  Shape of(const std::string& weight, int rank) const;
  // Blocks before the first number that has no such weight: "layers.{}.norm.weight".
  int64_t count(std::string_view before, std::string_view after) const;
  const std::string where() const { return checkpoint_.path().string(); }

 private:
  const Checkpoint& checkpoint_;
  const WeightNames& names_;
  std::string_view title_;
};

// Every linear and convolution under its own name, and under those of other tools.
using ModuleAliases = std::function<std::vector<StoredAs>(std::string_view weight)>;
LoraTargets lora_targets(const Graph& graph, const ModuleAliases& aliases);

}  // namespace halftone
