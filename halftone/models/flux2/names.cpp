#include "halftone/models/flux2/names.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>

#include "halftone/base/error.h"

namespace halftone::flux2 {
namespace {

// The start of a name in diffusers' layout, and in single files.
struct Renamed {
  std::string_view from, to;
  StoredRows rows = {};
};
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
constexpr std::string_view kPrefixes[] = {"", "model.diffusion_model.", "diffusion_model.",
                                          "transformer."};

StoredAs renamed(std::string_view name, std::span<const Renamed> table, const std::string& before) {
  for (const auto& [from, to, rows] : table) {
    if (name.starts_with(from)) {
      return {before + std::string(to) + std::string(name.substr(from.size())), rows};
    }
  }
  return {before + std::string(name)};
}

StoredAs single_file_name(std::string_view name) {
  const std::tuple<std::string_view, std::string_view, std::span<const Renamed>> kinds[] = {
      {kDoubleBlocks, "double_blocks.", kDouble}, {kSingleBlocks, "single_blocks.", kSingle}};
  for (const auto& [blocks, stored_blocks, table] : kinds) {
    if (!name.starts_with(blocks)) continue;
    const size_t number = name.find('.', blocks.size());
    if (number == std::string_view::npos) continue;
    const auto index = name.substr(blocks.size(), number + 1 - blocks.size());
    return renamed(name.substr(number + 1), table, std::string(stored_blocks) + std::string(index));
  }
  return renamed(name, kModel, "");
}

// What stands before the mark, where a tensor has it.
std::optional<std::string> prefix_in(const Checkpoint& checkpoint) {
  for (const Checkpoint::Item& item : checkpoint.items()) {
    const std::string& name = item.entry->name;
    for (const std::string_view prefix : kPrefixes) {
      if (name.starts_with(prefix) && name.substr(prefix.size()).starts_with(kMark)) {
        return std::string(prefix);
      }
    }
  }
  return std::nullopt;
}

bool any_name(const Checkpoint& checkpoint, const auto& is_it) {
  return std::any_of(
      checkpoint.items().begin(), checkpoint.items().end(),
      [&](const Checkpoint::Item& item) { return is_it(std::string_view(item.entry->name)); });
}

bool is_of_another_component(std::string_view name) {
  return name.starts_with("vae.") || name.starts_with("text_encoders.");
}

}  // namespace

bool is_flux2_file(const Checkpoint& checkpoint) { return prefix_in(checkpoint).has_value(); }

WeightNames names_in(const Checkpoint& checkpoint) {
  const std::string prefix = prefix_in(checkpoint).value_or("");
  const bool single = any_name(checkpoint, [&](std::string_view name) {
    return name.starts_with(prefix + std::string(kMark) + ".");
  });
  // Some tools call the scales of norms weights here too.
  const bool norms_have_weights = any_name(
      checkpoint, [](std::string_view name) { return name.ends_with(".query_norm.weight"); });
  WeightNames names;
  names.stored_as = [prefix, single, norms_have_weights](const std::string& weight) {
    StoredAs stored = single ? single_file_name(weight) : StoredAs{weight};
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
  const auto find = [&](const std::string& weight) {
    return checkpoint.find(names.stored_as(weight).name);
  };
  const auto shape = [&](const std::string& weight, int rank) {
    const Checkpoint::Item* item = find(weight);
    if (item == nullptr || item->entry->shape.rank() != rank) {
      throw Error(ErrorCode::kInvalidInput, checkpoint.path().string(),
                  "is no FLUX.2 transformer: there is no tensor '{}' of rank {}",
                  names.stored_as(weight).name, rank);
    }
    return item->entry->shape;
  };
  const auto count = [&](std::string_view kind) {
    int64_t n = 0;
    while (find(fmt::format("{}{}.attn.norm_q.weight", kind, n)) != nullptr) ++n;
    return n;
  };
  const TransformerConfig usual;
  const Shape embedder = shape("x_embedder.weight", 2);
  const int64_t dim = embedder[0];
  const int64_t head = shape("single_transformer_blocks.0.attn.norm_q.weight", 1)[0];
  if (head != usual.head_dim) {
    throw Error(ErrorCode::kUnsupported, checkpoint.path().string(),
                "heads of {} need a transformer/config.json in the folder given by --base", head);
  }
  // Rows are the same in every format that weights are quantized to; loading checks the rest.
  double mlp_ratio = usual.mlp_ratio;
  const Checkpoint::Item* mlp = find("transformer_blocks.0.ff.linear_in.weight");
  if (mlp != nullptr && mlp->entry->shape.rank() == 2 && dim > 0) {
    mlp_ratio = static_cast<double>(mlp->entry->shape[0]) / static_cast<double>(2 * dim);
  }
  const bool guidance = find("time_guidance_embed.guidance_embedder.linear_1.weight") != nullptr;
  // Shapes are no more to be trusted than a config, and held to the same rules.
  return parse_transformer_config(
      {{"in_channels", embedder[1]},
       {"num_attention_heads", dim / head},
       {"joint_attention_dim", shape("context_embedder.weight", 2)[1]},
       {"timestep_guidance_channels",
        shape("time_guidance_embed.timestep_embedder.linear_1.weight", 2)[1]},
       {"mlp_ratio", mlp_ratio},
       {"num_layers", count(kDoubleBlocks)},
       {"num_single_layers", count(kSingleBlocks)},
       {"guidance_embeds", guidance}},
      checkpoint.path().string());
}

LoraTargets lora_targets(const Graph& transformer) {
  LoraTargets targets;
  const auto path_of = [](const std::string& weight) {
    return weight.substr(0, weight.size() - std::string_view(".weight").size());
  };
  for (const Node& node : transformer.nodes()) {
    if (node.op != Op::kLinear) continue;
    const ValueInfo& info = transformer.values()[node.inputs[1]];
    const std::string path = path_of(info.name);
    if (targets.contains(path)) continue;
    const LoraTarget target{info.name, info.type.shape};
    targets[path] = {target};
    const StoredAs alias = single_file_name(info.name);
    if (alias.name != info.name) {
      targets[path_of(alias.name)].push_back({info.name, info.type.shape, alias.rows});
    }
    // Some files have lost the start of this name.
    if (path.starts_with(kDoubleBlocks)) {
      targets[path.substr(std::string_view("tran").size())] = {target};
    }
  }
  return targets;
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
