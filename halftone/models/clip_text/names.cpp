#include "halftone/models/clip_text/names.h"

#include <array>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>

#include "halftone/models/single_file_names.h"

namespace halftone::clip_text {
namespace {

constexpr std::string_view kModel = "text_model.", kLayers = "encoder.layers.";

struct ClipName {
  std::string_view from, to;
  StoredRows rows = {};
};
// Names without "text_model." in transformers' layout, and in OpenCLIP's.
constexpr ClipName kOutside[] = {
    {"embeddings.token_embedding.weight", "token_embedding.weight"},
    {"embeddings.position_embedding.weight", "positional_embedding"},
    {"final_layer_norm.", "ln_final."},
};
// The same behind a layer's number.
constexpr ClipName kInside[] = {
    {"layer_norm1.", "ln_1."},
    {"layer_norm2.", "ln_2."},
    {"self_attn.q_proj.", "attn.in_proj_", {0, 3}},
    {"self_attn.k_proj.", "attn.in_proj_", {1, 3}},
    {"self_attn.v_proj.", "attn.in_proj_", {2, 3}},
    {"self_attn.out_proj.", "attn.out_proj."},
    {"mlp.fc1.", "mlp.c_fc."},
    {"mlp.fc2.", "mlp.c_proj."},
};

StoredAs open_clip_name(std::string_view name, std::span<const ClipName> table) {
  for (const ClipName& entry : table) {
    if (!name.starts_with(entry.from)) continue;
    return {std::string(entry.to) + std::string(name.substr(entry.from.size())), entry.rows};
  }
  return {std::string(name)};
}

// "encoder.layers.3.mlp.fc1.bias" -> "3" and "mlp.fc1.bias".
struct InLayer {
  std::string_view number, rest;
};
std::optional<InLayer> in_layer(std::string_view name, std::string_view layers) {
  if (!name.starts_with(layers)) return std::nullopt;
  name.remove_prefix(layers.size());
  const size_t dot = name.find('.');
  if (dot == std::string_view::npos) return std::nullopt;
  return InLayer{name.substr(0, dot), name.substr(dot + 1)};
}

enum class Layout { kTransformers, kBare, kOpenClip };
constexpr std::string_view kOpenClipLayers = "transformer.resblocks.";
constexpr std::string_view kOpenClipProjection = "text_projection";

StoredAs name_in(Layout layout, const std::string& name) {
  const bool in_model = name.starts_with(kModel);
  const std::string inner = in_model ? name.substr(kModel.size()) : name;
  if (layout == Layout::kTransformers) return {name};
  if (layout == Layout::kBare) return {inner};
  if (!in_model) return {std::string(kOpenClipProjection), {}, /*transposed=*/true};
  const auto layer = in_layer(inner, kLayers);
  if (!layer) return open_clip_name(inner, kOutside);
  StoredAs stored = open_clip_name(layer->rest, kInside);
  stored.name = std::string(kOpenClipLayers) + std::string(layer->number) + "." + stored.name;
  return stored;
}

}  // namespace

WeightNames names_in(const Checkpoint& checkpoint, const Config& config, const Options& options,
                     const std::string& within) {
  const auto has = [&](const char* name) { return checkpoint.find(within + name) != nullptr; };
  const Layout layout = has("transformer.resblocks.0.ln_1.weight") ? Layout::kOpenClip
                        : has("embeddings.token_embedding.weight") ? Layout::kBare
                                                                   : Layout::kTransformers;
  WeightNames names;
  names.stored_as = [=](const std::string& name) {
    StoredAs stored = name_in(layout, name);
    stored.name = within + stored.name;
    return stored;
  };
  // What follows from nothing, and what is not needed for what is asked for.
  names.known_unused = [=, first = layers_run(config, options),
                        end = config.layers](std::string_view name) {
    if (!name.starts_with(within)) return true;
    name.remove_prefix(within.size());
    const bool open = layout == Layout::kOpenClip;
    if (name == "logit_scale" || name == "text_projection" || name == "text_projection.weight") {
      return !options.projected || name == "logit_scale";
    }
    if (layout == Layout::kTransformers && name.starts_with(kModel)) {
      name.remove_prefix(kModel.size());
    }
    if (name == "embeddings.position_ids" || name == "attn_mask") return true;
    if (!options.pooled && name.starts_with(open ? "ln_final." : "final_layer_norm.")) return true;
    const auto layer = in_layer(name, open ? kOpenClipLayers : kLayers);
    if (!layer) return false;
    int64_t number = -1;
    const char* last = layer->number.data() + layer->number.size();
    const auto read = std::from_chars(layer->number.data(), last, number);
    return read.ec == std::errc() && read.ptr == last && number >= first && number < end;
  };
  return names;
}

Config infer_config(const Checkpoint& checkpoint, const std::string& within, const Config& usual) {
  const WeightNames names = names_in(checkpoint, usual, {}, within);
  const StoredShapes shapes(checkpoint, names, "CLIP text encoder");
  const Shape tokens = shapes.of("text_model.embeddings.token_embedding.weight", 2);
  const Shape positions = shapes.of("text_model.embeddings.position_embedding.weight", 2);
  const Shape inner = shapes.of("text_model.encoder.layers.0.mlp.fc1.weight", 2);
  const int64_t head = usual.hidden_size / usual.heads;
  int64_t projection = tokens[1];
  constexpr const char* kProjection = "text_projection.weight";
  if (shapes.find(kProjection) != nullptr) {
    projection = shapes.of(kProjection, 2)[names.stored_as(kProjection).transposed ? 1 : 0];
  }
  const bool quick = usual.activation == Function::kQuickGelu;
  // Shapes are no more to be trusted than a config, and held to the same rules.
  return parse_config(
      {{"vocab_size", tokens[0]},
       {"hidden_size", tokens[1]},
       {"intermediate_size", inner[0]},
       {"num_hidden_layers", shapes.count("text_model.encoder.layers.", ".layer_norm1.weight")},
       {"num_attention_heads", tokens[1] / head},
       {"max_position_embeddings", positions[0]},
       {"hidden_act", quick ? "quick_gelu" : "gelu"},
       {"layer_norm_eps", usual.norm_eps},
       {"projection_dim", projection},
       {"eos_token_id", tokens[0] - 1}},  // the vocabulary's last
      shapes.where());
}

LoraTargets lora_targets(const Graph& graph, const Config& config) {
  LoraTargets targets = halftone::lora_targets(graph, [](std::string_view weight) {
    std::vector<StoredAs> aliases;
    if (weight.starts_with(kModel)) {
      aliases.push_back({std::string(weight.substr(kModel.size()))});
    }
    return aliases;
  });
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    for (const ClipName& entry : kInside) {
      if (entry.from.starts_with("layer_norm")) continue;
      const std::string path =
          fmt::format("{}{}.{}", kLayers, layer, entry.from.substr(0, entry.from.size() - 1));
      targets.try_emplace(std::string(kModel) + path);
      targets.try_emplace(path);
    }
  }
  return targets;
}

QuantizeRecipe layers_recipe(const Format& format) {
  QuantizeRecipe recipe;
  recipe.format = format;
  recipe.activations = false;
  recipe.include = {"text_model.encoder.layers.*.weight"};
  recipe.keep = {
      {"text_projection.weight", "one small product makes the vector of a whole prompt"}};
  return recipe;
}

}  // namespace halftone::clip_text
