#include "halftone/models/autoencoder_kl/names.h"

#include <charconv>
#include <nlohmann/json.hpp>

#include "halftone/base/error.h"
#include "halftone/models/single_file_names.h"

namespace halftone::autoencoder_kl {
namespace {

constexpr std::string_view kMark = "encoder.down.0.block.0.norm1.weight";  // of the original code

// Inside of encoder and decoder.
constexpr Renamed kOutsideOfBlocks[] = {
    {"conv_norm_out.", "norm_out."},
    {"mid_block.resnets.0.", "mid.block_1."},
    {"mid_block.resnets.1.", "mid.block_2."},
    {"mid_block.attentions.0.group_norm.", "mid.attn_1.norm."},
    {"mid_block.attentions.0.to_q.", "mid.attn_1.q."},
    {"mid_block.attentions.0.to_k.", "mid.attn_1.k."},
    {"mid_block.attentions.0.to_v.", "mid.attn_1.v."},
    {"mid_block.attentions.0.to_out.0.", "mid.attn_1.proj_out."},
};
constexpr Renamed kInBlock[] = {
    {"resnets.", "block."},
    {"downsamplers.0.conv.", "downsample.conv."},
    {"upsamplers.0.conv.", "upsample.conv."},
};
constexpr RenamedBlocks kLevels[] = {{"down_blocks.", "down.", kInBlock},
                                     {"up_blocks.", "up.", kInBlock}};
constexpr RenamedModel kOriginal = {kOutsideOfBlocks, kLevels};

void replace(std::string& name, std::string_view from, std::string_view to) {
  const size_t at = name.find(from);
  if (at != std::string::npos) name.replace(at, from.size(), to);
}

// Levels of the decoder are counted from the picture in the original code.
void count_from_picture(std::string& name, int64_t levels) {
  constexpr std::string_view kUp = "up.";
  if (!name.starts_with(kUp)) return;
  const size_t end = name.find('.', kUp.size());
  int64_t level = 0;
  std::from_chars(name.data() + kUp.size(), name.data() + end, level);
  name = fmt::format("{}{}{}", kUp, levels - 1 - level, name.substr(end));
}

StoredAs original_name(const std::string& weight, int64_t levels) {
  const size_t dot = weight.find('.') + 1;
  const std::string part = weight.substr(0, dot);
  if (part != "encoder." && part != "decoder.") return {weight};
  StoredAs stored = renamed(weight.substr(dot), kOriginal);
  if (part == "decoder.") count_from_picture(stored.name, levels);
  replace(stored.name, ".conv_shortcut.", ".nin_shortcut.");
  stored.kernel = weight.ends_with(".weight") && weight.find(".attentions.0.to_") != weight.npos;
  stored.name = part + stored.name;
  return stored;
}

}  // namespace

WeightNames names_in(const Checkpoint& checkpoint, const std::string& within) {
  const bool original = checkpoint.find(within + std::string(kMark)) != nullptr;
  int64_t levels = 0;
  while (checkpoint.find(fmt::format("{}decoder.up.{}.block.0.norm1.weight", within, levels)) !=
         nullptr) {
    ++levels;
  }
  WeightNames names;
  names.stored_as = [=](const std::string& weight) {
    StoredAs stored = original ? original_name(weight, levels) : StoredAs{weight};
    stored.name = within + stored.name;
    return stored;
  };
  if (!within.empty()) {
    names.known_unused = [=](std::string_view name) { return !name.starts_with(within); };
  }
  return names;
}

Config infer_config(const Checkpoint& checkpoint, const std::string& within, const Config& usual) {
  const WeightNames names = names_in(checkpoint, within);
  const StoredShapes shapes(checkpoint, names, "VAE");
  const int64_t levels = shapes.count("encoder.down_blocks.", ".resnets.0.norm1.weight");
  std::vector<int64_t> channels;
  for (int64_t i = 0; i < levels; ++i) {
    channels.push_back(
        shapes.of(fmt::format("encoder.down_blocks.{}.resnets.0.conv1.weight", i), 4)[0]);
  }
  // Shapes are no more to be trusted than a config, and held to the same rules.
  return parse_config(
      {{"latent_channels", shapes.of("decoder.conv_in.weight", 4)[1]},
       {"block_out_channels", channels},
       {"layers_per_block", shapes.count("encoder.down_blocks.0.resnets.", ".norm1.weight")},
       {"norm_num_groups", usual.groups},
       {"mid_block_add_attention",
        shapes.find("decoder.mid_block.attentions.0.group_norm.weight") != nullptr},
       {"use_quant_conv", shapes.find("quant_conv.weight") != nullptr},
       {"use_post_quant_conv", shapes.find("post_quant_conv.weight") != nullptr},
       {"scaling_factor", usual.scaling_factor},
       {"shift_factor", usual.shift_factor}},
      shapes.where());
}

}  // namespace halftone::autoencoder_kl
