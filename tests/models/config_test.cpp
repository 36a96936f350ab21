// Configs of every part: those that are found in the wild load, and nothing in one is passed over:
// a field is used, refused by name, or known to change nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "halftone/diffusion/flow_match_euler.h"
#include "halftone/io/safetensors_writer.h"
#include "halftone/models/autoencoder_kl/autoencoder.h"
#include "halftone/models/clip_text/text_encoder.h"
#include "halftone/models/flux2/transformer.h"
#include "halftone/models/qwen3/text_encoder.h"
#include "halftone/models/t5/text_encoder.h"
#include "halftone/models/zimage/names.h"
#include "halftone/models/zimage/transformer.h"
#include "tests/support/errors.h"
#include "tests/support/temp_dir.h"

namespace halftone {
namespace {

using nlohmann::json;
using test::error_of;
using testing::HasSubstr;

// As they lie on the Hub: Z-Image-Turbo's transformer and scheduler, Qwen3-4B, FLUX's VAE.
const json kTransformer = json::parse(R"({
  "_class_name": "ZImageTransformer2DModel", "_diffusers_version": "0.36.0.dev0",
  "all_f_patch_size": [1], "all_patch_size": [2], "axes_dims": [32, 48, 48],
  "axes_lens": [1536, 512, 512], "cap_feat_dim": 2560, "dim": 3840, "in_channels": 16,
  "n_heads": 30, "n_kv_heads": 30, "n_layers": 30, "n_refiner_layers": 2, "norm_eps": 1e-05,
  "qk_norm": true, "rope_theta": 256.0, "siglip_feat_dim": null, "t_scale": 1000.0})");
const json kTextEncoder = json::parse(R"({
  "architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "bos_token_id": 151643, "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu",
  "hidden_size": 2560, "initializer_range": 0.02, "intermediate_size": 9728,
  "max_position_embeddings": 40960, "max_window_layers": 36, "model_type": "qwen3",
  "num_attention_heads": 32, "num_hidden_layers": 36, "num_key_value_heads": 8,
  "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1000000, "sliding_window": null,
  "tie_word_embeddings": true, "torch_dtype": "bfloat16", "transformers_version": "4.51.0",
  "use_cache": true, "use_sliding_window": false, "vocab_size": 151936})");
const json kVae = json::parse(R"({
  "_class_name": "AutoencoderKL", "_diffusers_version": "0.30.0.dev0",
  "_name_or_path": "../checkpoints/flux-dev", "act_fn": "silu",
  "block_out_channels": [128, 256, 512, 512], "down_block_types": ["DownEncoderBlock2D",
  "DownEncoderBlock2D", "DownEncoderBlock2D", "DownEncoderBlock2D"], "force_upcast": true,
  "in_channels": 3, "latent_channels": 16, "latents_mean": null, "latents_std": null,
  "layers_per_block": 2, "mid_block_add_attention": true, "norm_num_groups": 32,
  "out_channels": 3, "sample_size": 1024, "scaling_factor": 0.3611, "shift_factor": 0.1159,
  "up_block_types": ["UpDecoderBlock2D", "UpDecoderBlock2D", "UpDecoderBlock2D",
  "UpDecoderBlock2D"], "use_post_quant_conv": false, "use_quant_conv": false})");
// FLUX.2-klein 4B's transformer and VAE.
const json kFlux2Transformer = json::parse(R"({
  "_class_name": "Flux2Transformer2DModel", "_diffusers_version": "0.37.0.dev0",
  "attention_head_dim": 128, "axes_dims_rope": [32, 32, 32, 32], "eps": 1e-06,
  "guidance_embeds": false, "in_channels": 128, "joint_attention_dim": 7680, "mlp_ratio": 3.0,
  "num_attention_heads": 24, "num_layers": 5, "num_single_layers": 20, "out_channels": null,
  "patch_size": 1, "rope_theta": 2000, "timestep_guidance_channels": 256})");
const json kFlux2Vae = json::parse(R"({
  "_class_name": "AutoencoderKLFlux2", "_diffusers_version": "0.37.0.dev0", "act_fn": "silu",
  "batch_norm_eps": 0.0001, "batch_norm_momentum": 0.1,
  "block_out_channels": [128, 256, 512, 512], "decoder_block_out_channels": null,
  "down_block_types": ["DownEncoderBlock2D", "DownEncoderBlock2D", "DownEncoderBlock2D",
  "DownEncoderBlock2D"], "force_upcast": true, "in_channels": 3, "latent_channels": 32,
  "layers_per_block": 2, "mid_block_add_attention": true, "norm_num_groups": 32,
  "out_channels": 3, "patch_size": [2, 2], "sample_size": 1024, "up_block_types":
  ["UpDecoderBlock2D", "UpDecoderBlock2D", "UpDecoderBlock2D", "UpDecoderBlock2D"],
  "use_post_quant_conv": true, "use_quant_conv": true})");
const json kClipText = json::parse(R"({
  "architectures": ["CLIPTextModel"], "attention_dropout": 0.0, "bos_token_id": 0, "dropout": 0.0,
  "eos_token_id": 2, "hidden_act": "quick_gelu", "hidden_size": 768, "initializer_factor": 1.0,
  "initializer_range": 0.02, "intermediate_size": 3072, "layer_norm_eps": 1e-05,
  "max_position_embeddings": 77, "model_type": "clip_text_model", "num_attention_heads": 12,
  "num_hidden_layers": 12, "pad_token_id": 1, "projection_dim": 768, "torch_dtype": "bfloat16",
  "transformers_version": "4.43.3", "vocab_size": 49408})");
const json kT5 = json::parse(R"({
  "architectures": ["T5EncoderModel"], "classifier_dropout": 0.0, "d_ff": 10240, "d_kv": 64,
  "d_model": 4096, "decoder_start_token_id": 0, "dense_act_fn": "gelu_new", "dropout_rate": 0.1,
  "eos_token_id": 1, "feed_forward_proj": "gated-gelu", "initializer_factor": 1.0,
  "is_encoder_decoder": true, "is_gated_act": true, "layer_norm_epsilon": 1e-06,
  "model_type": "t5", "num_decoder_layers": 24, "num_heads": 64, "num_layers": 24,
  "output_past": true, "pad_token_id": 0, "relative_attention_max_distance": 128,
  "relative_attention_num_buckets": 32, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
  "transformers_version": "4.43.3", "use_cache": true, "vocab_size": 32128})");
const json kScheduler = json::parse(R"({
  "_class_name": "FlowMatchEulerDiscreteScheduler", "_diffusers_version": "0.36.0.dev0",
  "num_train_timesteps": 1000, "use_dynamic_shifting": false, "shift": 3.0})");
// With every field that this version of diffusers writes.
const json kFullScheduler = json::parse(R"({
  "_class_name": "FlowMatchEulerDiscreteScheduler", "base_image_seq_len": 256, "base_shift": 0.5,
  "invert_sigmas": false, "max_image_seq_len": 4096, "max_shift": 1.15,
  "num_train_timesteps": 1000, "shift": 3.0, "shift_terminal": null,
  "stochastic_sampling": false, "time_shift_type": "exponential", "use_beta_sigmas": false,
  "use_dynamic_shifting": true, "use_exponential_sigmas": false, "use_karras_sigmas": false})");

// A part: a config that loads, and what is done with one as long as no weight is needed.
struct Part {
  const char* name;
  json config;
  std::function<void(const json&)> use;
};

const std::string kFile = "config.json";
void use_transformer(const json& config) {
  zimage::TransformerConfig c = zimage::parse_transformer_config(config, kFile);
  c.layers = std::min<int64_t>(c.layers, 1);  // the others are the same again
  c.refiner_layers = std::min<int64_t>(c.refiner_layers, 1);
  const int64_t p = c.patch_size;
  zimage::build_transformer(c, {1, p, p, zimage::kSequenceMultiple}, {});
}
void use_text_encoder(const json& config) {
  qwen3::Config c = qwen3::parse_config(config, kFile);
  c.layers = std::min<int64_t>(c.layers, 2);
  qwen3::build_text_encoder(c, 1, 1, {});
  const std::vector<int32_t> ids = {0};
  for (const auto& [name, tensor] : qwen3::text_inputs(c, 1, {&ids, 1})) {
    if (tensor.dtype() != DType::kF32) continue;
    for (const float v : tensor.as<float>()) ASSERT_TRUE(std::isfinite(v)) << name;
  }
}
void use_clip_text(const json& config) {
  clip_text::Config c = clip_text::parse_config(config, kFile);
  c.layers = std::min<int64_t>(c.layers, 2);
  clip_text::build_text_encoder(c, 1, 1, {});
}
void use_t5(const json& config) {
  t5::Config c = t5::parse_config(config, kFile);
  c.layers = std::min<int64_t>(c.layers, 2);
  t5::build_text_encoder(c, 1, 1, {});
  for (const int64_t distance : {-1 << 20, -1, 0, 1, 1 << 20}) {
    const int64_t bucket = t5::bucket_of(c, distance);
    ASSERT_TRUE(bucket >= 0 && bucket < c.buckets) << config;
  }
}
void use_vae(const json& config) {
  const auto c = autoencoder_kl::parse_config(config, kFile);
  EXPECT_TRUE(std::isnormal(c.scaling_factor) && std::isnormal(1 / c.scaling_factor));
  autoencoder_kl::build_decoder(c, 1, 1, 1, {});
  autoencoder_kl::build_encoder(c, 1, c.scale(), c.scale(), {});
}
void use_flux2_transformer(const json& config) {
  flux2::TransformerConfig c = flux2::parse_transformer_config(config, kFile);
  c.layers = std::min<int64_t>(c.layers, 1);
  c.single_layers = std::min<int64_t>(c.single_layers, 1);
  flux2::build_transformer(c, {1, 1, 1, 1}, {});
}
void use_flux2_vae(const json& config) {
  const auto c = autoencoder_kl::parse_flux2_config(config, kFile);
  EXPECT_TRUE(std::isnormal(c.statistics_eps));
  autoencoder_kl::build_decoder(c, 1, 1, 1, {});
  autoencoder_kl::build_encoder(c, 1, c.scale(), c.scale(), {});
}
void use_scheduler(const json& config) {
  const auto c = parse_flow_match_config(config, kFile);
  for (const int steps : {2, 50}) {
    for (const float sigma : flow_match_sigmas(c, steps, 4096)) {
      ASSERT_TRUE(sigma >= 0 && sigma <= 1) << config;
    }
  }
}
std::vector<Part> parts() {
  return {{"transformer", kTransformer, use_transformer},
          {"text encoder", kTextEncoder, use_text_encoder},
          {"VAE", kVae, use_vae},
          {"scheduler", kScheduler, use_scheduler},
          {"full scheduler", kFullScheduler, use_scheduler},
          {"FLUX.2 transformer", kFlux2Transformer, use_flux2_transformer},
          {"FLUX.2 VAE", kFlux2Vae, use_flux2_vae},
          {"CLIP's text encoder", kClipText, use_clip_text},
          {"T5", kT5, use_t5}};
}

TEST(Configs, ThoseOnTheHubLoad) {
  for (const Part& part : parts()) {
    EXPECT_EQ(error_of([&] { part.use(part.config); }), "(no error)") << part.name;
  }
  const auto transformer = zimage::parse_transformer_config(kTransformer, kFile);
  EXPECT_EQ(transformer.axes_lens[0], 1536);
  const auto text = qwen3::parse_config(kTextEncoder, kFile);
  EXPECT_EQ(text.hidden_size, 2560);
  EXPECT_EQ(text.rope_theta, 1e6);
  // As transformers 5 writes it.
  json newer = kTextEncoder;
  newer.erase("rope_theta");
  newer.erase("rope_scaling");
  newer.erase("torch_dtype");
  newer.update({{"rope_parameters", {{"rope_theta", 5e5}, {"rope_type", "default"}}},
                {"layer_types", std::vector<std::string>(36, "full_attention")},
                {"dtype", "bfloat16"},
                {"pad_token_id", nullptr}});
  EXPECT_EQ(qwen3::parse_config(newer, kFile).rope_theta, 5e5);
  const auto vae = autoencoder_kl::parse_config(kVae, kFile);
  EXPECT_EQ(vae.scale(), 8);
  EXPECT_FLOAT_EQ(vae.scaling_factor, 0.3611f);
  EXPECT_EQ(parse_flow_match_config(kScheduler, kFile).shift, 3);
  EXPECT_EQ(flux2::parse_transformer_config(kFlux2Transformer, kFile).hidden(), 9216);
  json small_decoder = kFlux2Vae;
  small_decoder["decoder_block_out_channels"] = {96, 192, 384, 384};
  const auto flux2_vae = autoencoder_kl::parse_flux2_config(small_decoder, kFile);
  EXPECT_EQ(flux2_vae.scale(), 16);
  EXPECT_EQ(flux2_vae.sampler_channels(), 128);
  EXPECT_EQ(flux2_vae.decoder_channels.back(), 384);
}

// Each field at each extreme: it works, or the Error names it.
TEST(Configs, EveryFieldAtItsExtremes) {
  const char* extremes[] = {"0",
                            "-1",
                            "1",
                            "3",
                            "1e-300",
                            "-1e-300",
                            "1e300",
                            "-1e300",
                            "1e-46",
                            "1e38",
                            "1e39",
                            "2.5",
                            "2147483648",
                            "9223372036854775807",
                            "-9223372036854775808",
                            "18446744073709551615",
                            "true",
                            "false",
                            R"("")",
                            R"("text")",
                            "{}",
                            "[]",
                            "[0]",
                            "[-1]",
                            "[1e300]",
                            "[1,1,1]",
                            "[9223372036854775807]",
                            R"({"a":1})",
                            R"(["text"])"};
  int refused = 0, worked = 0;
  for (const Part& part : parts()) {
    for (const auto& [field, usual] : part.config.items()) {
      std::vector<json> values;
      for (const char* text : extremes) values.push_back(json::parse(text));
      values.push_back(std::vector<int>(64, 32));
      values.push_back(std::vector<int>(100000, 1));
      values.push_back(std::string(100000, 'x'));
      for (const json& value : values) {
        json config = part.config;
        config[field] = value;
        const std::string error = error_of([&] { part.use(config); });
        const bool fine = error == "(no error)";
        // Where shifts are in range and do not go together, the sigmas tell.
        const bool told =
            error.find("'" + field) != std::string::npos ||
            (error.starts_with("scheduler: ") && error.find(field) != std::string::npos);
        EXPECT_TRUE(fine || told) << part.name << " " << field << ": " << error;
        EXPECT_LT(error.size(), 300u) << field;
        (fine ? worked : refused)++;
      }
    }
  }
  EXPECT_GT(refused, 1200);
  EXPECT_GT(worked, 300);
}

// Fields that nobody knows may change results; notes of the writer and nulls do not.
TEST(Configs, FieldsThatAreNotKnownAreRefused) {
  for (const Part& part : parts()) {
    const auto error = [&](const char* field, const json& value) {
      json config = part.config;
      config[field] = value;
      return error_of([&] { part.use(config); });
    };
    EXPECT_EQ(error("new_trick", 3),
              "config.json: 'new_trick' is not known, and may change results: 3");
    EXPECT_EQ(error("new_trick", nullptr), "(no error)");
    EXPECT_EQ(error("_note", "by a tool"), "(no error)");
  }
}

TEST(Configs, WhatIsNotSupportedIsNamed) {
  const std::vector<Part> all = parts();
  struct Case {
    size_t part;
    json change;
    std::string error;
  };
  const std::vector<Case> cases = {
      {0, {{"_class_name", "OtherTransformer"}}, "'_class_name' is \"OtherTransformer\", and only"},
      {0, {{"siglip_feat_dim", 1152}}, "'siglip_feat_dim' is 1152, which is not supported"},
      {0, {{"all_patch_size", {1, 2}}}, "'all_patch_size' is not a list of one"},
      {1, {{"hidden_act", "gelu"}}, "'hidden_act' is \"gelu\", and only \"silu\" is supported"},
      {1, {{"num_key_value_heads", 5}}, "'num_key_value_heads' does not divide"},
      {1, {{"num_attention_heads", nullptr}}, "'num_attention_heads' is missing"},
      {1, {{"rope_theta", nullptr}}, "'rope_theta' is missing"},
      {1, {{"model_type", "qwen2"}}, "'model_type' is \"qwen2\""},
      {1, {{"layer_types", {"full_attention", "sliding_attention"}}}, "'layer_types' holds"},
      {1, {{"rope_scaling", {{"rope_type", "yarn"}}}}, "'rope_scaling.rope_type' is \"yarn\""},
      {1, {{"rope_scaling", {{"factor", 4.0}}}}, "'rope_scaling.factor' is not known"},
      {1, {{"rope_parameters", {{"rope_theta", 1e300}}}}, "'rope_parameters.rope_theta' 1e+300"},
      {2, {{"in_channels", 4}}, "'in_channels' is 4, and only 3 is supported"},
      {2, {{"out_channels", 1}}, "'out_channels' is 1, and only 3 is supported"},
      {2, {{"block_out_channels", {30}}}, "'norm_num_groups' does not divide the channels"},
      {2, {{"block_out_channels", {32, 32}}}, "'down_block_types' has not as many entries"},
      {2, {{"latents_mean", {0.1}}}, "'latents_mean' is [0.1], which is not supported"},
      {3, {{"_class_name", "FlowMatchLCMScheduler"}}, "'_class_name' is \"FlowMatchLCMScheduler\""},
      {3, {{"num_train_timesteps", 500}}, "'num_train_timesteps' is 500, and only 1000"},
      {3, {{"use_karras_sigmas", true}}, "'use_karras_sigmas' is true, and only false"},
      {3, {{"shift", -1}}, "'shift' -1 is not in 0.001 .. 1000"},
      {3, {{"scale_factors", {1, 2}}}, "'scale_factors' is not known"},
      {5, {{"guidance_embeds", true}}, "'guidance_embeds' is true, and only false is supported"},
      {5, {{"guidance_embeds", nullptr}}, "'guidance_embeds' is missing"},
      {5, {{"num_attention_heads", nullptr}}, "'num_attention_heads' is missing"},
      {5, {{"patch_size", 2}}, "'patch_size' is 2, and only 1 is supported"},
      {5, {{"out_channels", 64}}, "'out_channels' is not 'in_channels'"},
      {5, {{"axes_dims_rope", {64, 64}}}, "'axes_dims_rope' is not a list of four"},
      {5, {{"axes_dims_rope", {32, 32, 32, 30}}}, "'axes_dims_rope' adds up to 126, not to"},
      {5, {{"axes_dims_rope", {33, 31, 32, 32}}}, "'axes_dims_rope' holds an odd number"},
      {5, {{"timestep_guidance_channels", 255}}, "'timestep_guidance_channels' is odd"},
      {6, {{"_class_name", "AutoencoderKL"}}, "'_class_name' is \"AutoencoderKL\", and only"},
      {6, {{"patch_size", {1, 1}}}, "'patch_size' is not [2, 2]"},
      {6, {{"scaling_factor", 0.5}}, "'scaling_factor' is not known"},
      {6, {{"decoder_block_out_channels", {96, 192}}}, "'decoder_block_out_channels' has not as"},
      {6, {{"decoder_block_out_channels", {96, 192, 384, 390}}}, "'norm_num_groups' does not"},
      {7, {{"model_type", "clip"}}, "'model_type' is \"clip\", and only \"clip_text_model\""},
      {7, {{"hidden_act", "gelu_new"}}, "'hidden_act' is \"gelu_new\", which is not supported"},
      {7, {{"num_attention_heads", 7}}, "'num_attention_heads' does not divide 'hidden_size'"},
      {7, {{"eos_token_id", 49408}}, "'eos_token_id' is no id of 'vocab_size'"},
      {7, {{"hidden_size", nullptr}}, "'hidden_size' is missing"},
      {8, {{"model_type", "umt5"}}, "'model_type' is \"umt5\", and only \"t5\" is supported"},
      {8, {{"feed_forward_proj", "relu"}}, "'feed_forward_proj' is \"relu\", and only"},
      {8, {{"dense_act_fn", "silu"}}, "'dense_act_fn' is \"silu\", and only"},
      {8, {{"is_decoder", true}}, "'is_decoder' is true, and only false is supported"},
      {8, {{"relative_attention_num_buckets", 30}}, "'relative_attention_num_buckets' is no"},
      {8, {{"relative_attention_max_distance", 8}}, "'relative_attention_max_distance' leaves"},
      {8, {{"d_kv", nullptr}}, "'d_kv' is missing"},
  };
  for (const Case& c : cases) {
    json config = all[c.part].config;
    config.update(c.change);
    EXPECT_THAT(error_of([&] { all[c.part].use(config); }), HasSubstr(kFile + ": " + c.error));
  }
}

// A file that comes without a config is held to the same rules, by the shapes of its tensors.
TEST(Configs, ShapesThatStandForAConfigAreChecked) {
  const test::TempDir dir;
  const auto error = [&](const Shape& embedder, int64_t head) {
    const auto zeros = [](const Shape& shape) { return Tensor::zeros(DType::kBF16, shape); };
    write_safetensors(dir / "t.safetensors", {{"all_x_embedder.2-1.weight", zeros(embedder)},
                                              {"cap_embedder.0.weight", zeros({32})},
                                              {"layers.0.attention.norm_q.weight", zeros({head})}});
    const Checkpoint file = Checkpoint::open(dir / "t.safetensors");
    return error_of([&] { zimage::infer_transformer_config(file, zimage::names_in(file)); });
  };
  EXPECT_EQ(error({384, 64}, 128), "(no error)");
  EXPECT_THAT(error({0, 64}, 128), HasSubstr("t.safetensors: 'dim' 0 is not in 1 .. 65536"));
  EXPECT_THAT(error({384, 3}, 128), HasSubstr("'in_channels' 0 is not in 1 .. 1024"));
  EXPECT_THAT(error({400, 64}, 128), HasSubstr("'n_heads' does not divide 'dim'"));
  EXPECT_THAT(error({120, 64}, 128), HasSubstr("'n_heads' 0 is not in"));
  EXPECT_THAT(error({384, 64}, 0), HasSubstr("heads of 0 need a transformer/config.json"));
}

TEST(FlowMatch, ShiftsThatGiveNoSigmasAreRefused) {
  json config = kFullScheduler;
  config["max_shift"] = 100;
  config["max_image_seq_len"] = 257;  // a slope of 99 per token
  const auto schedule = parse_flow_match_config(config, kFile);
  EXPECT_THAT(error_of([&] { flow_match_sigmas(schedule, 8, 4096); }),
              HasSubstr("scheduler: has no sigmas from 1 to 0 for 8 steps and 4096 image tokens"));
  EXPECT_EQ(error_of([&] { flow_match_sigmas(schedule, 8, 256); }), "(no error)");
}

}  // namespace
}  // namespace halftone
