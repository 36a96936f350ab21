#include <cmath>

#include "halftone/io/config_reader.h"
#include "halftone/models/autoencoder_kl/autoencoder.h"
#include "halftone/models/float_values.h"

namespace halftone::autoencoder_kl {
namespace {

constexpr const char* kMean = "bn.running_mean";
constexpr const char* kVariance = "bn.running_var";
constexpr const char* kBatches = "bn.num_batches_tracked";  // of training alone

std::vector<int64_t> read_channels(const ConfigReader& read, const char* name,
                                   std::vector<int64_t> fallback) {
  return read.integers(name, std::move(fallback), /*most_items=*/8, /*most=*/1 << 16);
}

// What both classes have; `defaults` are those of the class.
Config read_common(const ConfigReader& read, Config defaults) {
  Config c = std::move(defaults);
  read.must_be("act_fn", "silu");
  read.must_be("in_channels", kColours);
  read.must_be("out_channels", kColours);
  read.must_hold_only("down_block_types", "DownEncoderBlock2D");
  read.must_hold_only("up_block_types", "UpDecoderBlock2D");
  c.latent_channels = read.integer("latent_channels", c.latent_channels, 1, 1024);
  c.channels = read_channels(read, "block_out_channels", c.channels);
  c.layers_per_block = read.integer("layers_per_block", c.layers_per_block, 1, 100);
  c.groups = static_cast<int>(read.integer("norm_num_groups", c.groups, 1, 1 << 16));
  c.mid_attention = read.boolean("mid_block_add_attention", true);
  c.quant_conv = read.boolean("use_quant_conv", true);
  c.post_quant_conv = read.boolean("use_post_quant_conv", true);
  // What it was trained on, and in which precision diffusers runs it.
  read.ignore({"sample_size", "force_upcast", "dtype", "torch_dtype"});
  return c;
}

void check_common(const ConfigReader& read, const Config& c) {
  const auto check_groups = [&](const std::vector<int64_t>& channels, const char* name) {
    for (const int64_t n : channels) {
      if (n % c.groups == 0) continue;
      read.fail("norm_num_groups", fmt::format("does not divide the channels ('{}')", name));
    }
  };
  check_groups(c.channels, "block_out_channels");
  check_groups(c.decoder_channels, "decoder_block_out_channels");
  for (const char* types : {"down_block_types", "up_block_types"}) {
    if (read.has(types) && read.field(types).size() != c.channels.size()) {
      read.fail(types, "has not as many entries as 'block_out_channels'");
    }
  }
}

std::vector<float> statistic(const Checkpoint& checkpoint, const char* name, const Config& c) {
  const auto fail = [&](const std::string& reason) {
    throw Error(ErrorCode::kInvalidInput, checkpoint.path().string(), "tensor '{}' {}", name,
                reason);
  };
  const Checkpoint::Item* item = checkpoint.find(name);
  if (item == nullptr) fail("is missing");
  if (item->entry->shape != Shape{c.sampler_channels()} || !is_high_precision(item->entry->dtype)) {
    fail(fmt::format("is {} {} instead of one number for each of {} channels",
                     name_of(item->entry->dtype), item->entry->shape, c.sampler_channels()));
  }
  std::vector<float> values = float_values(item->file->tensor(*item->entry));
  for (const float v : values) {
    if (!std::isfinite(v)) fail("holds NaN or Inf");
  }
  return values;
}

}  // namespace

Config parse_config(const nlohmann::json& json, const std::string& where) {
  const ConfigReader read(json, where);
  read.must_be("_class_name", "AutoencoderKL");
  Config usual;
  usual.latent_channels = 4;
  usual.channels = {64};
  usual.layers_per_block = 1;
  Config c = read_common(read, usual);
  read.must_be_empty({"latents_mean", "latents_std"});
  // Latents are divided by it, and multiplied.
  c.scaling_factor = static_cast<float>(read.number("scaling_factor", 0.18215, 1e-6, 1e6));
  c.shift_factor = static_cast<float>(read.number("shift_factor", 0, -1e6, 1e6));
  read.finish();
  check_common(read, c);
  return c;
}

Config parse_flux2_config(const nlohmann::json& json, const std::string& where) {
  const ConfigReader read(json, where);
  read.must_be("_class_name", "AutoencoderKLFlux2");
  Config usual;
  usual.latent_channels = 32;
  Config c = read_common(read, usual);
  c.decoder_channels = read_channels(read, "decoder_block_out_channels", {});
  c.scaling_factor = 1;
  c.shift_factor = 0;
  c.statistics_eps = static_cast<float>(read.number("batch_norm_eps", 1e-4, 1e-12, 1));
  const auto patch = read.integers("patch_size", {2, 2}, /*most_items=*/2, /*most=*/16);
  // diffusers' pipelines make patches of 2 x 2, whatever stands here.
  if (patch != std::vector<int64_t>{2, 2}) read.fail("patch_size", "is not [2, 2]");
  c.patch_size = patch[0];
  read.ignore({"batch_norm_momentum"});  // of training
  read.finish();
  check_common(read, c);
  if (!c.decoder_channels.empty() && c.decoder_channels.size() != c.channels.size()) {
    read.fail("decoder_block_out_channels", "has not as many entries as 'block_out_channels'");
  }
  return c;
}

void read_statistics(Config& config, const Checkpoint& checkpoint) {
  config.latents_mean = statistic(checkpoint, kMean, config);
  config.latents_std = statistic(checkpoint, kVariance, config);
  for (float& v : config.latents_std) {
    if (!(v >= 0)) {
      throw Error(ErrorCode::kInvalidInput, checkpoint.path().string(),
                  "tensor '{}' holds {}, which is no variance", kVariance, v);
    }
    v = std::sqrt(v + config.statistics_eps);
  }
}

WeightNames flux2_weight_names() {
  WeightNames names;
  names.known_unused = [](std::string_view name) {
    return name == kMean || name == kVariance || name == kBatches;
  };
  return names;
}

}  // namespace halftone::autoencoder_kl
