#include "halftone/models/t5/names.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "halftone/models/single_file_names.h"

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

Config infer_config(const Checkpoint& checkpoint, const std::string& within) {
  const WeightNames names = names_in(checkpoint, within);
  const StoredShapes shapes(checkpoint, names, "T5 text encoder");
  const std::string attention = "encoder.block.0.layer.0.SelfAttention.";
  const Shape tokens = shapes.of(std::string(kTable), 2);
  const Shape bias = shapes.of(attention + "relative_attention_bias.weight", 2);
  const Shape queries = shapes.of(attention + "q.weight", 2);
  const Shape inner = shapes.of("encoder.block.0.layer.1.DenseReluDense.wi_0.weight", 2);
  // Shapes are no more to be trusted than a config, and held to the same rules.
  return parse_config(
      {{"vocab_size", tokens[0]},
       {"d_model", tokens[1]},
       {"d_ff", inner[0]},
       {"d_kv", queries[0] / std::max<int64_t>(bias[1], 1)},
       {"num_layers", shapes.count("encoder.block.", ".layer.0.SelfAttention.q.weight")},
       {"num_heads", bias[1]},
       {"relative_attention_num_buckets", bias[0]},
       {"feed_forward_proj", "gated-gelu"}},
      shapes.where());
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
