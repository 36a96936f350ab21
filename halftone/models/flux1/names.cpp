#include "halftone/models/flux1/names.h"

#include <nlohmann/json.hpp>

#include "halftone/base/error.h"
#include "halftone/models/single_file_names.h"

namespace halftone::flux1 {
namespace {

constexpr Renamed kModel[] = {
    {"x_embedder.", "img_in."},
    {"context_embedder.", "txt_in."},
    {"time_text_embed.timestep_embedder.linear_1.", "time_in.in_layer."},
    {"time_text_embed.timestep_embedder.linear_2.", "time_in.out_layer."},
    {"time_text_embed.guidance_embedder.linear_1.", "guidance_in.in_layer."},
    {"time_text_embed.guidance_embedder.linear_2.", "guidance_in.out_layer."},
    {"time_text_embed.text_embedder.linear_1.", "vector_in.in_layer."},
    {"time_text_embed.text_embedder.linear_2.", "vector_in.out_layer."},
    {"norm_out.linear.", "final_layer.adaLN_modulation.1.", {0, 1, 1, true}},
    {"proj_out.", "final_layer.linear."},
};
constexpr Renamed kDouble[] = {
    {"norm1.linear.", "img_mod.lin."},
    {"norm1_context.linear.", "txt_mod.lin."},
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
    {"ff.net.0.proj.", "img_mlp.0."},
    {"ff.net.2.", "img_mlp.2."},
    {"ff_context.net.0.proj.", "txt_mlp.0."},
    {"ff_context.net.2.", "txt_mlp.2."},
};
// One product before attention and MLP: q, k and v, then four times as many rows.
constexpr Renamed kSingle[] = {
    {"norm.linear.", "modulation.lin."},
    {"attn.to_q.", "linear1.", {0, 7}},
    {"attn.to_k.", "linear1.", {1, 7}},
    {"attn.to_v.", "linear1.", {2, 7}},
    {"proj_mlp.", "linear1.", {3, 7, 4}},
    {"proj_out.", "linear2."},
    {"attn.norm_q.weight", "norm.query_norm.scale"},
    {"attn.norm_k.weight", "norm.key_norm.scale"},
};
constexpr std::string_view kDoubleBlocks = "transformer_blocks.";
constexpr std::string_view kSingleBlocks = "single_transformer_blocks.";
constexpr RenamedBlocks kBlocks[] = {{kDoubleBlocks, "double_blocks.", kDouble},
                                     {kSingleBlocks, "single_blocks.", kSingle}};
constexpr RenamedModel kSingleFile = {kModel, kBlocks};

// Adapters alone: XLabs' processors, and q, k and v of a single block without its MLP.
constexpr Renamed kDoubleXLabs[] = {
    {"attn.to_q.", "processor.qkv_lora1.", {0, 3}},
    {"attn.to_k.", "processor.qkv_lora1.", {1, 3}},
    {"attn.to_v.", "processor.qkv_lora1.", {2, 3}},
    {"attn.add_q_proj.", "processor.qkv_lora2.", {0, 3}},
    {"attn.add_k_proj.", "processor.qkv_lora2.", {1, 3}},
    {"attn.add_v_proj.", "processor.qkv_lora2.", {2, 3}},
    {"attn.to_out.0.", "processor.proj_lora1."},
    {"attn.to_add_out.", "processor.proj_lora2."},
};
constexpr Renamed kSingleXLabs[] = {
    {"attn.to_q.", "processor.qkv_lora.", {0, 3}},
    {"attn.to_k.", "processor.qkv_lora.", {1, 3}},
    {"attn.to_v.", "processor.qkv_lora.", {2, 3}},
    {"proj_out.", "processor.proj_lora."},
};
constexpr Renamed kSingleParts[] = {
    {"attn.to_q.", "linear1_qkv.", {0, 3}},
    {"attn.to_k.", "linear1_qkv.", {1, 3}},
    {"attn.to_v.", "linear1_qkv.", {2, 3}},
};
constexpr RenamedBlocks kXLabsBlocks[] = {{kDoubleBlocks, "double_blocks.", kDoubleXLabs},
                                          {kSingleBlocks, "single_blocks.", kSingleXLabs}};
constexpr RenamedBlocks kPartBlocks[] = {{kSingleBlocks, "single_blocks.", kSingleParts}};

// Marks that no other family has, in each naming.
constexpr std::string_view kSingleFileMark = "double_blocks.0.img_attn.norm.key_norm.";
constexpr std::string_view kMark = "single_transformer_blocks.0.proj_mlp.weight";

}  // namespace

bool is_flux1_file(const Checkpoint& checkpoint) {
  if (prefix_before(checkpoint, "single_stream_modulation.lin")) return false;  // FLUX.2
  return prefix_before(checkpoint, kSingleFileMark) || prefix_before(checkpoint, kMark);
}

WeightNames names_in(const Checkpoint& checkpoint) {
  const auto single = prefix_before(checkpoint, kSingleFileMark);
  const std::string prefix = single ? *single : prefix_before(checkpoint, kMark).value_or("");
  // Some tools call the scales of norms weights here too.
  const bool norms_have_weights =
      any_name(checkpoint, [](std::string_view n) { return n.ends_with(".query_norm.weight"); });
  WeightNames names;
  names.stored_as = [prefix, is_single = single.has_value(),
                     norms_have_weights](const std::string& weight) {
    StoredAs stored = is_single ? renamed(weight, kSingleFile) : StoredAs{weight};
    constexpr std::string_view kScale = "_norm.scale";
    if (norms_have_weights && stored.name.ends_with(kScale)) {
      stored.name.replace(stored.name.size() - kScale.size(), kScale.size(), "_norm.weight");
    }
    stored.name = prefix + stored.name;
    return stored;
  };
  if (!prefix.empty()) names.known_unused = is_of_another_component;
  return names;
}

TransformerConfig infer_transformer_config(const Checkpoint& checkpoint, const WeightNames& names) {
  const StoredShapes shapes(checkpoint, names, "FLUX.1 transformer");
  const TransformerConfig usual;
  const Shape embedder = shapes.of("x_embedder.weight", 2);
  const int64_t dim = embedder[0];
  const int64_t head = shapes.of("transformer_blocks.0.attn.norm_q.weight", 1)[0];
  if (head != usual.head_dim) {
    throw Error(ErrorCode::kUnsupported, shapes.where(),
                "heads of {} need a transformer/config.json in the folder given by --base", head);
  }
  // Shapes are no more to be trusted than a config, and held to the same rules.
  return parse_transformer_config(
      {{"in_channels", embedder[1]},
       {"out_channels", shapes.of("proj_out.weight", 2)[0]},
       {"num_attention_heads", dim / head},
       {"joint_attention_dim", shapes.of("context_embedder.weight", 2)[1]},
       {"pooled_projection_dim", shapes.of("time_text_embed.text_embedder.linear_1.weight", 2)[1]},
       {"num_layers", shapes.count(kDoubleBlocks, ".attn.norm_q.weight")},
       {"num_single_layers", shapes.count(kSingleBlocks, ".attn.norm_q.weight")},
       {"guidance_embeds",
        shapes.find("time_text_embed.guidance_embedder.linear_1.weight") != nullptr}},
      shapes.where());
}

LoraTargets lora_targets(const Graph& transformer) {
  return halftone::lora_targets(transformer, [](std::string_view weight) {
    return std::vector{renamed(weight, kSingleFile), renamed(weight, {{}, kXLabsBlocks}),
                       renamed(weight, {{}, kPartBlocks})};
  });
}

QuantizeRecipe default_recipe(const Format& format) {
  QuantizeRecipe recipe;
  recipe.format = format;
  recipe.include = {"transformer_blocks.*.weight", "single_transformer_blocks.*.weight"};
  recipe.keep = {{"*.norm.linear.*", "modulation stays in high precision"},
                 {"*.norm1.linear.*", "modulation stays in high precision"},
                 {"*.norm1_context.linear.*", "modulation stays in high precision"},
                 {"time_text_embed.*", "the embedders of time and prompt stay in high precision"},
                 {"x_embedder.*", "the image embedder stays in high precision"},
                 {"context_embedder.*", "the text embedder stays in high precision"},
                 {"norm_out.*", "the final layer stays in high precision"},
                 {"proj_out.*", "the final layer stays in high precision"},
                 {"*.lora_?", "an adapter stays in high precision"}};
  return recipe;
}

}  // namespace halftone::flux1
