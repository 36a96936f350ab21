#include "halftone/models/sdxl/names.h"

#include <charconv>
#include <nlohmann/json.hpp>

#include "halftone/base/error.h"
#include "halftone/models/single_file_names.h"

namespace halftone::sdxl {
namespace {

constexpr Renamed kOutside[] = {
    {"time_embedding.linear_1.", "time_embed.0."},
    {"time_embedding.linear_2.", "time_embed.2."},
    {"add_embedding.linear_1.", "label_emb.0.0."},
    {"add_embedding.linear_2.", "label_emb.0.2."},
    {"conv_in.", "input_blocks.0.0."},
    {"conv_norm_out.", "out.0."},
    {"conv_out.", "out.2."},
};
constexpr Renamed kInResnet[] = {
    {"norm1.", "in_layers.0."},          {"conv1.", "in_layers.2."},
    {"time_emb_proj.", "emb_layers.1."}, {"norm2.", "out_layers.0."},
    {"conv2.", "out_layers.3."},         {"conv_shortcut.", "skip_connection."},
};

// Marks of each naming.
constexpr std::string_view kSingleFileMark = "label_emb.0.0.weight";
constexpr std::string_view kMark = "add_embedding.linear_1.weight";

// "resnets.3.conv1.bias" -> 3 and "conv1.bias"; the name begins with `list`.
struct Numbered {
  int64_t number = 0;
  std::string_view rest;
};
Numbered numbered(std::string_view name, std::string_view list) {
  name.remove_prefix(list.size());
  Numbered result;
  const auto end = std::from_chars(name.data(), name.data() + name.size(), result.number).ptr;
  result.rest = name.substr(std::min(name.size(), static_cast<size_t>(end - name.data()) + 1));
  return result;
}

std::string in_resnet(std::string_view rest) { return renamed(rest, {kInResnet, {}}).name; }

// Inside of a level, whose blocks are numbered from `first` in the file.
std::string in_level(std::string_view rest, const char* blocks, int64_t first, int64_t sampler,
                     const char* sampler_name) {
  if (rest.starts_with("resnets.")) {
    const auto [i, inside] = numbered(rest, "resnets.");
    return fmt::format("{}.{}.0.{}", blocks, first + i, in_resnet(inside));
  }
  if (rest.starts_with("attentions.")) {
    const auto [i, inside] = numbered(rest, "attentions.");
    return fmt::format("{}.{}.1.{}", blocks, first + i, inside);
  }
  const size_t conv = rest.find(".conv.");
  const auto parameter = rest.substr(conv == rest.npos ? rest.size() : conv + 6);
  return fmt::format("{}.{}.{}.{}", blocks, sampler, sampler_name, parameter);
}

// What tells where blocks are in a single file.
struct SingleFile {
  int64_t layers_per_block = 2;
  std::vector<bool> up_attends;  // an upsampler is behind what else its block has
};

std::string single_file_name(std::string_view weight, const SingleFile& file) {
  const int64_t layers = file.layers_per_block;
  if (weight.starts_with("down_blocks.")) {
    const auto [level, rest] = numbered(weight, "down_blocks.");
    const int64_t first = 1 + level * (layers + 1);
    return in_level(rest, "input_blocks", first, first + layers, "0.op");
  }
  if (weight.starts_with("up_blocks.")) {
    const auto [index, rest] = numbered(weight, "up_blocks.");
    const int64_t first = index * (layers + 1);
    const auto at = static_cast<size_t>(index);
    const bool attends = at < file.up_attends.size() && file.up_attends[at];
    return in_level(rest, "output_blocks", first, first + layers, attends ? "2.conv" : "1.conv");
  }
  if (weight.starts_with("mid_block.resnets.")) {
    const auto [i, rest] = numbered(weight, "mid_block.resnets.");
    return fmt::format("middle_block.{}.{}", 2 * i, in_resnet(rest));
  }
  constexpr std::string_view kMiddle = "mid_block.attentions.0.";
  if (weight.starts_with(kMiddle)) {
    return fmt::format("middle_block.1.{}", weight.substr(kMiddle.size()));
  }
  return renamed(weight, {kOutside, {}}).name;
}

// Of a file, from its tensors.
SingleFile single_file_in(const Checkpoint& checkpoint, const std::string& prefix) {
  const auto has = [&](const std::string& name) {
    return checkpoint.find(prefix + name) != nullptr;
  };
  SingleFile file;
  file.layers_per_block = 0;
  while (has(fmt::format("input_blocks.{}.0.in_layers.0.weight", file.layers_per_block + 1))) {
    ++file.layers_per_block;
  }
  const int64_t up = file.layers_per_block + 1;
  for (int64_t i = 0; has(fmt::format("output_blocks.{}.0.in_layers.0.weight", i)); i += up) {
    file.up_attends.push_back(has(fmt::format("output_blocks.{}.1.norm.weight", i)));
  }
  return file;
}

bool is_note(std::string_view name) {
  return name == "v_pred" || name == "ztsnr" || name == "denoiser.sigmas";
}

// Adapters of old versions of diffusers: a processor's own linears beside those of its attention.
std::string processor_name(std::string_view weight) {
  std::string name(weight);
  for (const auto& [linear, in_processor] :
       {std::pair{".to_q.", ".processor.to_q_lora."}, std::pair{".to_k.", ".processor.to_k_lora."},
        std::pair{".to_v.", ".processor.to_v_lora."},
        std::pair{".to_out.0.", ".processor.to_out_lora."}}) {
    const size_t at = name.find(linear);
    if (at == name.npos) continue;
    return name.replace(at, std::string_view(linear).size(), in_processor);
  }
  return name;
}

}  // namespace

bool is_sdxl_file(const Checkpoint& checkpoint) {
  return prefix_before(checkpoint, kSingleFileMark) || prefix_before(checkpoint, kMark);
}

WeightNames names_in(const Checkpoint& checkpoint) {
  const auto single = prefix_before(checkpoint, kSingleFileMark);
  const std::string prefix = single ? *single : prefix_before(checkpoint, kMark).value_or("");
  WeightNames names;
  if (single) {
    names.stored_as = [prefix, file = single_file_in(checkpoint, prefix)](const std::string& name) {
      return StoredAs{prefix + single_file_name(name, file)};
    };
  } else {
    names.stored_as = [prefix](const std::string& name) { return StoredAs{prefix + name}; };
  }
  names.known_unused = [whole = !prefix.empty()](std::string_view name) {
    return is_note(name) || (whole && is_of_another_component(name));
  };
  return names;
}

FileMarks marks_of(const Checkpoint& checkpoint) {
  for (const char* unsupported : {"edm_mean", "edm_std", "edm_vpred.sigma_max"}) {
    if (checkpoint.find(unsupported) == nullptr) continue;
    throw Error(ErrorCode::kUnsupported, checkpoint.path().string(),
                "has '{}': it was trained on EDM's noise levels, which are not supported",
                unsupported);
  }
  return {checkpoint.find("v_pred") != nullptr, checkpoint.find("ztsnr") != nullptr};
}

UnetConfig infer_unet_config(const Checkpoint& checkpoint, const WeightNames& names) {
  const StoredShapes shapes(checkpoint, names, "SDXL U-Net");
  const UnetConfig usual;
  constexpr int64_t kHead = 64;
  const int64_t levels = shapes.count("down_blocks.", ".resnets.0.norm1.weight");
  nlohmann::json channels = nlohmann::json::array(), heads = channels, layers = channels,
                 down = channels, up = channels;
  for (int64_t i = 0; i < levels; ++i) {
    const std::string block = fmt::format("down_blocks.{}.", i);
    const int64_t width = shapes.of(block + "resnets.0.conv1.weight", 4)[0];
    const bool attends = shapes.find(block + "attentions.0.norm.weight") != nullptr;
    const auto count = [&](const std::string& in) {
      return shapes.count(in + "attentions.0.transformer_blocks.", ".norm1.weight");
    };
    const std::string way_up = fmt::format("up_blocks.{}.", levels - 1 - i);
    const int64_t deep = std::max(count(block), count(way_up));
    if (width % kHead != 0) {
      throw Error(ErrorCode::kUnsupported, shapes.where(),
                  "blocks of {} need a unet/config.json in the folder given by --base", width);
    }
    channels.push_back(width);
    heads.push_back(width / kHead);
    layers.push_back(
        std::max<int64_t>(1, i + 1 == levels ? std::max(deep, count("mid_block.")) : deep));
    down.push_back(attends ? "CrossAttnDownBlock2D" : "DownBlock2D");
    up.insert(up.begin(), shapes.find(way_up + "attentions.0.norm.weight") != nullptr
                              ? "CrossAttnUpBlock2D"
                              : "UpBlock2D");
  }
  // Shapes are no more to be trusted than a config, and held to the same rules.
  return parse_unet_config(
      {{"in_channels", shapes.of("conv_in.weight", 4)[1]},
       {"out_channels", shapes.of("conv_out.weight", 4)[0]},
       {"block_out_channels", channels},
       {"down_block_types", down},
       {"up_block_types", up},
       {"attention_head_dim", heads},
       {"transformer_layers_per_block", layers},
       {"layers_per_block", shapes.count("down_blocks.0.resnets.", ".norm1.weight")},
       {"cross_attention_dim",
        shapes.of("mid_block.attentions.0.transformer_blocks.0.attn2.to_k.weight", 2)[1]},
       {"norm_num_groups", usual.groups},
       {"addition_embed_type", "text_time"},
       {"addition_time_embed_dim", usual.size_features},
       {"projection_class_embeddings_input_dim", shapes.of("add_embedding.linear_1.weight", 2)[1]},
       {"use_linear_projection", true}},
      shapes.where());
}

LoraTargets lora_targets(const Graph& unet, const UnetConfig& config) {
  const SingleFile file = {config.layers_per_block, config.up_attends};
  return halftone::lora_targets(unet, [file](std::string_view weight) {
    return std::vector{StoredAs{single_file_name(weight, file)}, StoredAs{processor_name(weight)}};
  });
}

QuantizeRecipe default_recipe(const Format& format) {
  QuantizeRecipe recipe;
  recipe.format = format;
  recipe.include = {"*.transformer_blocks.*.weight"};
  recipe.keep = {{"*.time_emb_proj.*", "the time's way into ResNets stays in high precision"},
                 {"time_embedding.*", "the embedders of time and sizes stay in high precision"},
                 {"add_embedding.*", "the embedders of time and sizes stay in high precision"},
                 {"*.proj_in.*", "the ways into and out of transformers stay in high precision"},
                 {"*.proj_out.*", "the ways into and out of transformers stay in high precision"},
                 {"*.lora_?", "an adapter stays in high precision"}};
  return recipe;
}

}  // namespace halftone::sdxl
