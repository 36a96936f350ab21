#include "halftone/models/zimage/names.h"

#include <array>
#include <nlohmann/json.hpp>
#include <numeric>

#include "halftone/base/error.h"

namespace halftone::zimage {
namespace {

// Parts of names in diffusers' layout and in single files.
constexpr std::pair<std::string_view, std::string_view> kRenamed[] = {
    {"all_x_embedder.2-1.", "x_embedder."},       {"all_final_layer.2-1.", "final_layer."},
    {".attention.to_out.0.", ".attention.out."},  {".attention.norm_q.", ".attention.q_norm."},
    {".attention.norm_k.", ".attention.k_norm."},
};
constexpr std::array<std::string_view, 3> kFused = {".attention.to_q.", ".attention.to_k.",
                                                    ".attention.to_v."};
constexpr std::string_view kFusedName = ".attention.qkv.";

StoredAs single_file_name(std::string name) {
  for (const auto& [from, to] : kRenamed) {
    if (const size_t at = name.find(from); at != std::string::npos) {
      name.replace(at, from.size(), to);
    }
  }
  StoredAs stored{name};
  for (size_t i = 0; i < kFused.size(); ++i) {
    if (const size_t at = name.find(kFused[i]); at != std::string::npos) {
      stored = {name.replace(at, kFused[i].size(), kFusedName), {static_cast<int>(i), 3}};
    }
  }
  return stored;
}

}  // namespace

WeightNames names_in(const Checkpoint& checkpoint) {
  std::string prefix;
  bool fused = false, whole = false;
  for (const Checkpoint::Item& item : checkpoint.items()) {
    const std::string_view name = item.entry->name;
    fused |= name.find(kFusedName) != std::string_view::npos;
    for (const std::string_view known : {"model.diffusion_model.", "diffusion_model."}) {
      if (name.starts_with(known)) prefix = known;
    }
    whole |= name.starts_with("vae.") || name.starts_with("text_encoders.");
  }
  WeightNames names;
  names.stored_as = [prefix, fused](const std::string& weight) {
    StoredAs stored = fused ? single_file_name(weight) : StoredAs{weight};
    stored.name = prefix + stored.name;
    return stored;
  };
  names.known_unused = [prefix, whole](std::string_view name) {
    // A leftover of training, and the other components of a file that holds a whole model.
    return name == prefix + "norm_final.weight" ||
           (whole && (name.starts_with("vae.") || name.starts_with("text_encoders.")));
  };
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
                  "is no Z-Image transformer: there is no tensor '{}' of rank {}",
                  names.stored_as(weight).name, rank);
    }
    return item->entry->shape;
  };
  const auto count = [&](const std::string& kind) {
    int64_t n = 0;
    while (find(fmt::format("{}.{}.attention_norm1.weight", kind, n)) != nullptr) ++n;
    return n;
  };
  const TransformerConfig usual;
  const Shape embedder = shape("all_x_embedder.2-1.weight", 2);
  const int64_t dim = embedder[0], head = shape("layers.0.attention.norm_q.weight", 1)[0];
  if (head != std::accumulate(usual.axes_dims.begin(), usual.axes_dims.end(), int64_t{0})) {
    throw Error(ErrorCode::kUnsupported, checkpoint.path().string(),
                "heads of {} need a transformer/config.json in the folder given by --base", head);
  }
  // Shapes are no more to be trusted than a config, and held to the same rules.
  return parse_transformer_config(
      {{"dim", dim},
       {"n_heads", dim / head},
       {"in_channels", embedder[1] / (usual.patch_size * usual.patch_size)},
       {"cap_feat_dim", shape("cap_embedder.0.weight", 1)[0]},
       {"n_layers", count("layers")},
       {"n_refiner_layers", count("noise_refiner")}},
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
    targets[path] = {{info.name, info.type.shape}};
    const StoredAs alias = single_file_name(info.name);
    if (alias.name != info.name) {
      targets[path_of(alias.name)].push_back({info.name, info.type.shape, alias.rows});
    }
  }
  return targets;
}

QuantizeRecipe default_recipe(const Format& format) {
  QuantizeRecipe recipe;
  recipe.format = format;
  recipe.include = {"layers.*.weight", "noise_refiner.*.weight", "context_refiner.*.weight"};
  recipe.keep = {{"*adaLN_modulation*", "modulation stays in high precision"},
                 {"t_embedder.*", "the time embedder stays in high precision"},
                 {"all_x_embedder.*", "the image embedder stays in high precision"},
                 {"cap_embedder.*", "the caption embedder stays in high precision"},
                 {"all_final_layer.*", "the final layer stays in high precision"},
                 {"*.lora_?", "an adapter stays in high precision"}};
  return recipe;
}

}  // namespace halftone::zimage
