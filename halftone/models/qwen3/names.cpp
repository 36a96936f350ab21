#include "halftone/models/qwen3/names.h"

#include <charconv>

namespace halftone::qwen3 {

WeightNames names_in(const Checkpoint& checkpoint, const Config& config, const Options& options) {
  const bool bare = checkpoint.find("embed_tokens.weight") != nullptr;
  const std::string prefix = bare ? "" : "model.";
  WeightNames names;
  names.stored_as = [prefix](const std::string& name) {
    return StoredAs{prefix + name.substr(std::string_view("model.").size())};
  };
  names.known_unused = [prefix, first = layers_run(config, options),
                        end = config.layers](std::string_view name) {
    if (name == prefix + "norm.weight" || name == "lm_head.weight") return true;
    const std::string layers = prefix + "layers.";
    if (!name.starts_with(layers)) return false;
    const char* digits = name.data() + layers.size();
    int64_t layer = -1;
    const auto read = std::from_chars(digits, name.data() + name.size(), layer);
    const bool whole = read.ptr != name.data() + name.size() && *read.ptr == '.';
    return read.ec == std::errc() && whole && layer >= first && layer < end;
  };
  return names;
}

QuantizeRecipe layers_recipe(const Format& format) {
  QuantizeRecipe recipe;
  recipe.format = format;
  recipe.activations = false;
  recipe.include = {"model.layers.*.weight"};
  return recipe;
}

}  // namespace halftone::qwen3
