#include "halftone/models/flux2/names.h"

#include <nlohmann/json.hpp>

#include "halftone/base/error.h"
#include "halftone/models/single_file_names.h"

namespace halftone::flux2 {
namespace {

constexpr Renamed kModel[] = {
    {"x_embedder.", "img_in."},
    {"context_embedder.", "txt_in."},
    {"time_guidance_embed.timestep_embedder.linear_1.", "time_in.in_layer."},
    {"time_guidance_embed.timestep_embedder.linear_2.", "time_in.out_layer."},
    {"time_guidance_embed.guidance_embedder.linear_1.", "guidance_in.in_layer."},
    {"double_stream_modulation_img.linear.", "double_stream_modulation_img.lin."},
    {"double_stream_modulation_txt.linear.", "double_stream_modulation_txt.lin."},
    {"single_stream_modulation.linear.", "single_stream_modulation.lin."},
    {"norm_out.linear.", "final_layer.adaLN_modulation.1.", {0, 1, 1, true}},
    {"proj_out.", "final_layer.linear."},
};
// The same inside of a block.
constexpr Renamed kDouble[] = {
    {"attn.to_q.", "img_attn.qkv.", {0, 3}},
    {"attn.to_k.", "img_attn.qkv.", {1, 3}},
    {"attn.to_v.", "img_attn.qkv.", {2, 3}},
    {"attn.add_q_proj.", "txt_attn.qkv.", {0, 3}},
    {"attn.add_k_proj.", "txt_attn.qkv.", {1, 3}},
    {"attn.add_v_proj.", "txt_attn.qkv.", {2, 3}},
    {"attn.norm_q.weight", "img_attn.norm.query_norm.scale"},
    {"attn.norm_k.weight", "img_attn.norm.key_norm.scale"},
    {"attn.norm_added_q.weight", "txt_attn.norm.query_norm.scale"},
    {"attn.norm_added_k.weight", "txt_attn.norm.key_norm.scale"},
    {"attn.to_out.0.", "img_attn.proj."},
    {"attn.to_add_out.", "txt_attn.proj."},
    {"ff.linear_in.", "img_mlp.0."},
    {"ff.linear_out.", "img_mlp.2."},
    {"ff_context.linear_in.", "txt_mlp.0."},
    {"ff_context.linear_out.", "txt_mlp.2."},
};
constexpr Renamed kSingle[] = {
    {"attn.to_qkv_mlp_proj.", "linear1."},
    {"attn.to_out.", "linear2."},
    {"attn.norm_q.weight", "norm.query_norm.scale"},
    {"attn.norm_k.weight", "norm.key_norm.scale"},
};
constexpr std::string_view kDoubleBlocks = "transformer_blocks.";
constexpr std::string_view kSingleBlocks = "single_transformer_blocks.";

// A mark that both namings have, and that no other family has.
constexpr std::string_view kMark = "single_stream_modulation.lin";

constexpr RenamedBlocks kBlocks[] = {{kDoubleBlocks, "double_blocks.", kDouble},
                                     {kSingleBlocks, "single_blocks.", kSingle}};
constexpr RenamedModel kSingleFile = {kModel, kBlocks};

}  // namespace

bool is_flux2_file(const Checkpoint& checkpoint) {
  return prefix_before(checkpoint, kMark).has_value();
}

WeightNames names_in(const Checkpoint& checkpoint) {
  const std::string prefix = prefix_before(checkpoint, kMark).value_or("");
  const bool single = any_name(checkpoint, [&](std::string_view name) {
    return name.starts_with(prefix + std::string(kMark) + ".");
  });
  // Some tools call the scales of norms weights here too.
  const bool norms_have_weights = any_name(
      checkpoint, [](std::string_view name) { return name.ends_with(".query_norm.weight"); });
  WeightNames names;
  names.stored_as = [prefix, single, norms_have_weights](const std::string& weight) {
    StoredAs stored = single ? renamed(weight, kSingleFile) : StoredAs{weight};
    constexpr std::string_view kScale = "_norm.scale";
    if (norms_have_weights && stored.name.ends_with(kScale)) {
      stored.name.replace(stored.name.size() - kScale.size(), kScale.size(), "_norm.weight");
    }
    stored.name = prefix + stored.name;
    return stored;
  };
  // The other components of a file that holds a whole model.
  if (!prefix.empty()) names.known_unused = is_of_another_component;
  return names;
}

TransformerConfig infer_transformer_config(const Checkpoint& checkpoint, const WeightNames& names) {
  const StoredShapes shapes(checkpoint, names, "FLUX.2 transformer");
  const TransformerConfig usual;
  const Shape embedder = shapes.of("x_embedder.weight", 2);
  const int64_t dim = embedder[0];
  const int64_t head = shapes.of("single_transformer_blocks.0.attn.norm_q.weight", 1)[0];
  if (head != usual.head_dim) {
    throw Error(ErrorCode::kUnsupported, shapes.where(),
                "heads of {} need a transformer/config.json in the folder given by --base", head);
  }
  // Rows are the same in every format that weights are quantized to; loading checks the rest.
  double mlp_ratio = usual.mlp_ratio;
  const Checkpoint::Item* mlp = shapes.find("transformer_blocks.0.ff.linear_in.weight");
  if (mlp != nullptr && mlp->entry->shape.rank() == 2 && dim > 0) {
    mlp_ratio = static_cast<double>(mlp->entry->shape[0]) / static_cast<double>(2 * dim);
  }
  const bool guidance =
      shapes.find("time_guidance_embed.guidance_embedder.linear_1.weight") != nullptr;
  // Shapes are no more to be trusted than a config, and held to the same rules.
  return parse_transformer_config(
      {{"in_channels", embedder[1]},
       {"num_attention_heads", dim / head},
       {"joint_attention_dim", shapes.of("context_embedder.weight", 2)[1]},
       {"timestep_guidance_channels",
        shapes.of("time_guidance_embed.timestep_embedder.linear_1.weight", 2)[1]},
       {"mlp_ratio", mlp_ratio},
       {"num_layers", shapes.count(kDoubleBlocks, ".attn.norm_q.weight")},
       {"num_single_layers", shapes.count(kSingleBlocks, ".attn.norm_q.weight")},
       {"guidance_embeds", guidance}},
      shapes.where());
}

LoraTargets lora_targets(const Graph& transformer) {
  return halftone::lora_targets(transformer, [](std::string_view weight) {
    std::vector<StoredAs> aliases = {renamed(weight, kSingleFile)};
    // Some files have lost the start of this name.
    if (weight.starts_with(kDoubleBlocks)) {
      aliases.push_back({std::string(weight.substr(std::string_view("tran").size()))});
    }
    return aliases;
  });
}

QuantizeRecipe default_recipe(const Format& format) {
  QuantizeRecipe recipe;
  recipe.format = format;
  recipe.include = {"transformer_blocks.*.weight", "single_transformer_blocks.*.weight"};
  recipe.keep = {{"*_stream_modulation*", "modulation stays in high precision"},
                 {"time_guidance_embed.*", "the time embedder stays in high precision"},
                 {"x_embedder.*", "the image embedder stays in high precision"},
                 {"context_embedder.*", "the text embedder stays in high precision"},
                 {"norm_out.*", "the final layer stays in high precision"},
                 {"proj_out.*", "the final layer stays in high precision"},
                 {"*.lora_?", "an adapter stays in high precision"}};
  return recipe;
}

}  // namespace halftone::flux2
