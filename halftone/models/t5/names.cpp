#include "halftone/models/t5/names.h"

namespace halftone::t5 {
namespace {

// The table of tokens, which files hold under either name or both.
constexpr std::string_view kTable = "shared.weight", kSameTable = "encoder.embed_tokens.weight";

}  // namespace

WeightNames names_in(const Checkpoint& checkpoint, const std::string& within) {
  const bool renamed = checkpoint.find(within + std::string(kTable)) == nullptr;
  WeightNames names;
  names.stored_as = [=](const std::string& name) {
    return StoredAs{within + (renamed && name == kTable ? std::string(kSameTable) : name)};
  };
  // Whole T5s have what writes text, too.
  names.known_unused = [=](std::string_view name) {
    if (!name.starts_with(within)) return true;
    name.remove_prefix(within.size());
    return name == kSameTable || name.starts_with("decoder.") || name == "lm_head.weight";
  };
  return names;
}

QuantizeRecipe layers_recipe(const Format& format) {
  QuantizeRecipe recipe;
  recipe.format = format;
  // Rounding inputs, too, would cost a third more (measured in tests), and save no memory.
  recipe.activations = false;
  recipe.include = {"encoder.block.*.weight"};
  return recipe;
}

}  // namespace halftone::t5
