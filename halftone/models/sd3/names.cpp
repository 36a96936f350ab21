#include "halftone/models/sd3/names.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "halftone/base/error.h"
#include "halftone/models/single_file_names.h"

namespace halftone::sd3 {
namespace {

constexpr StoredRows kSwapped = {0, 1, 1, true};
constexpr Renamed kModel[] = {
    {"pos_embed.proj.", "x_embedder.proj."},
    {"pos_embed.pos_embed", "pos_embed"},
    {"time_text_embed.timestep_embedder.linear_1.", "t_embedder.mlp.0."},
    {"time_text_embed.timestep_embedder.linear_2.", "t_embedder.mlp.2."},
    {"time_text_embed.text_embedder.linear_1.", "y_embedder.mlp.0."},
    {"time_text_embed.text_embedder.linear_2.", "y_embedder.mlp.2."},
    {"norm_out.linear.", "final_layer.adaLN_modulation.1.", kSwapped},
    {"proj_out.", "final_layer.linear."},
};
constexpr Renamed kBlock[] = {
    {"norm1.linear.", "x_block.adaLN_modulation.1."},
    {"norm1_context.linear.", "context_block.adaLN_modulation.1."},
    {"attn.to_q.", "x_block.attn.qkv.", {0, 3}},
    {"attn.to_k.", "x_block.attn.qkv.", {1, 3}},
    {"attn.to_v.", "x_block.attn.qkv.", {2, 3}},
    {"attn.add_q_proj.", "context_block.attn.qkv.", {0, 3}},
    {"attn.add_k_proj.", "context_block.attn.qkv.", {1, 3}},
    {"attn.add_v_proj.", "context_block.attn.qkv.", {2, 3}},
    {"attn.norm_q.", "x_block.attn.ln_q."},
    {"attn.norm_k.", "x_block.attn.ln_k."},
    {"attn.norm_added_q.", "context_block.attn.ln_q."},
    {"attn.norm_added_k.", "context_block.attn.ln_k."},
    {"attn.to_out.0.", "x_block.attn.proj."},
    {"attn.to_add_out.", "context_block.attn.proj."},
    {"attn2.to_q.", "x_block.attn2.qkv.", {0, 3}},
    {"attn2.to_k.", "x_block.attn2.qkv.", {1, 3}},
    {"attn2.to_v.", "x_block.attn2.qkv.", {2, 3}},
    {"attn2.norm_q.", "x_block.attn2.ln_q."},
    {"attn2.norm_k.", "x_block.attn2.ln_k."},
    {"attn2.to_out.0.", "x_block.attn2.proj."},
    {"ff.net.0.proj.", "x_block.mlp.fc1."},
    {"ff.net.2.", "x_block.mlp.fc2."},
    {"ff_context.net.0.proj.", "context_block.mlp.fc1."},
    {"ff_context.net.2.", "context_block.mlp.fc2."},
};
constexpr std::string_view kBlocks = "transformer_blocks.";
constexpr RenamedBlocks kRenamedBlocks[] = {{kBlocks, "joint_blocks.", kBlock}};
constexpr RenamedModel kSingleFile = {kModel, kRenamedBlocks};

// Marks of each naming.
constexpr std::string_view kSingleFileMark = "joint_blocks.0.context_block.adaLN_modulation.1.";
constexpr std::string_view kMark = "transformer_blocks.0.norm1_context.linear.weight";

// The last block scales and shifts the text without a gate, in another order than files have.
std::string last_text_norm(int64_t blocks) {
  return fmt::format("{}{}.norm1_context.linear.", kBlocks, blocks - 1);
}
StoredAs single_file_name(std::string_view weight, const std::string& swapped) {
  StoredAs stored = renamed(weight, kSingleFile);
  if (weight.starts_with(swapped)) stored.rows = kSwapped;
  return stored;
}

}  // namespace

bool is_sd3_file(const Checkpoint& checkpoint) {
  if (prefix_before(checkpoint, kSingleFileMark)) return true;
  return prefix_before(checkpoint, kMark) && prefix_before(checkpoint, "pos_embed.proj.weight");
}

WeightNames names_in(const Checkpoint& checkpoint) {
  const auto single = prefix_before(checkpoint, kSingleFileMark);
  const std::string prefix = single ? *single : prefix_before(checkpoint, kMark).value_or("");
  std::string swapped = "none";
  if (single) {
    int64_t blocks = 0;
    while (checkpoint.find(fmt::format("{}joint_blocks.{}.x_block.attn.qkv.weight", prefix,
                                       blocks)) != nullptr) {
      ++blocks;
    }
    swapped = last_text_norm(blocks);
  }
  WeightNames names;
  names.stored_as = [prefix, swapped, is_single = single.has_value()](const std::string& weight) {
    StoredAs stored = is_single ? single_file_name(weight, swapped) : StoredAs{weight};
    stored.name = prefix + stored.name;
    return stored;
  };
  if (!prefix.empty()) names.known_unused = is_of_another_component;
  return names;
}

TransformerConfig infer_transformer_config(const Checkpoint& checkpoint, const WeightNames& names) {
  const StoredShapes shapes(checkpoint, names, "Stable Diffusion 3 transformer");
  const TransformerConfig usual;
  const Shape patches = shapes.of("pos_embed.proj.weight", 4);
  const Shape table = shapes.of("pos_embed.pos_embed", 3);
  const auto most = std::llround(std::sqrt(static_cast<double>(table[1])));
  const int64_t layers = shapes.count(kBlocks, ".attn.to_q.weight");
  nlohmann::json dual = nlohmann::json::array();
  for (int64_t i = 0; i < layers; ++i) {
    if (shapes.find(fmt::format("{}{}.attn2.to_q.weight", kBlocks, i)) != nullptr) {
      dual.push_back(i);
    }
  }
  nlohmann::json norm;
  int64_t head = usual.head_dim;
  if (shapes.find("transformer_blocks.0.attn.norm_q.weight") != nullptr) {
    norm = "rms_norm";
    head = shapes.of("transformer_blocks.0.attn.norm_q.weight", 1)[0];
  }
  if (head < 1) {
    throw Error(ErrorCode::kInvalidInput, shapes.where(), "has heads of no value");
  }
  // Shapes are no more to be trusted than a config, and held to the same rules.
  return parse_transformer_config(
      {{"in_channels", patches[1]},
       {"out_channels", patches[1]},
       {"num_layers", layers},
       {"num_attention_heads", patches[0] / head},
       {"attention_head_dim", head},
       {"joint_attention_dim", shapes.of("context_embedder.weight", 2)[1]},
       {"pooled_projection_dim", shapes.of("time_text_embed.text_embedder.linear_1.weight", 2)[1]},
       {"pos_embed_max_size", most},
       {"dual_attention_layers", dual},
       {"caption_projection_dim", patches[0]},
       {"qk_norm", norm}},
      shapes.where());
}

LoraTargets lora_targets(const Graph& transformer) {
  int64_t blocks = 0;
  while (transformer.weights().contains(fmt::format("{}{}.attn.to_q.weight", kBlocks, blocks))) {
    ++blocks;
  }
  return halftone::lora_targets(transformer,
                                [swapped = last_text_norm(blocks)](std::string_view weight) {
                                  return std::vector{single_file_name(weight, swapped)};
                                });
}

QuantizeRecipe default_recipe(const Format& format) {
  QuantizeRecipe recipe;
  recipe.format = format;
  recipe.include = {"transformer_blocks.*.weight"};
  recipe.keep = {{"*.norm1.linear.*", "modulation stays in high precision"},
                 {"*.norm1_context.linear.*", "modulation stays in high precision"},
                 {"time_text_embed.*", "the embedders of time and prompt stay in high precision"},
                 {"context_embedder.*", "the text embedder stays in high precision"},
                 {"norm_out.*", "the final layer stays in high precision"},
                 {"proj_out.*", "the final layer stays in high precision"},
                 {"*.lora_?", "an adapter stays in high precision"}};
  return recipe;
}

}  // namespace halftone::sd3
