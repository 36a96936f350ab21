#include "halftone/models/sd3/family.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "halftone/base/error.h"
#include "halftone/base/files.h"
#include "halftone/io/json.h"
#include "halftone/models/autoencoder_kl/codec.h"
#include "halftone/models/clip_text/prompt_encoder.h"
#include "halftone/models/folder.h"
#include "halftone/models/sd3/names.h"
#include "halftone/models/sd3/transformer.h"
#include "halftone/models/t5/prompt_encoder.h"

namespace halftone::sd3 {
namespace {

namespace fs = std::filesystem;

class Sd3Denoiser final : public Denoiser {
 public:
  explicit Sd3Denoiser(const TransformerConfig& config) : config_(config) {}

  std::string_view folder() const override { return "transformer"; }
  int64_t channels() const override { return config_.in_channels; }
  int64_t patch() const override { return TransformerConfig::kPatch; }
  int64_t text_features() const override { return config_.joint_dim; }
  VectorWidths vectors() const override { return {{"pooled", config_.pooled_dim}}; }
  int64_t skippable_blocks() const override { return config_.layers; }
  std::array<int64_t, 2> most_patches() const override {
    return {config_.most_positions, config_.most_positions};
  }

  DenoiserShape shape(const Shape& latents, std::span<const int64_t> texts) const override {
    return {static_cast<int64_t>(texts.size()), latents, texts[0], false};
  }

  std::shared_ptr<Graph> build(const DenoiserShape& s, const BuildOptions& options) const override {
    return build_transformer(
        config_, {s.rows, s.latents[1], s.latents[2], s.text_tokens},
        {options.activations, options.tap_blocks, options.mark_ends, options.skip_blocks});
  }

  NamedTensors inputs(const DenoiserShape&, std::span<const Condition* const> rows) const override {
    return {{"text", stacked(rows, "text")}, {"pooled", stacked(rows, "pooled")}};
  }

  float time(const SamplerStep& step) const override { return static_cast<float>(step.timestep); }

  WeightNames names(const Checkpoint& checkpoint) const override { return names_in(checkpoint); }
  QuantizeRecipe recipe(const Format& format) const override { return default_recipe(format); }
  LoraTargets lora_targets(const Graph& graph) const override { return sd3::lora_targets(graph); }
  bool trains(const std::string& weight) const override { return weight != "pos_embed.pos_embed"; }

 private:
  TransformerConfig config_;
};

// The transformer's config: the folder's, or, for a file alone, what its tensors tell.
TransformerConfig transformer_config(const ModelFiles& files) {
  const fs::path config = files.of("transformer") / "config.json";
  if (files.denoiser.empty() || path_exists(config)) {
    return parse_transformer_config(read_json_file(config), config.string());
  }
  const Checkpoint checkpoint = Checkpoint::open(files.denoiser);
  return infer_transformer_config(checkpoint, names_in(checkpoint));
}

std::unique_ptr<Denoiser> make_denoiser(const ModelFiles& files) {
  check_model_index(files.base, "StableDiffusion3Pipeline",
                    {{"scheduler", {"FlowMatchEulerDiscreteScheduler"}},
                     {"text_encoder", {"CLIPTextModelWithProjection"}},
                     {"text_encoder_2", {"CLIPTextModelWithProjection"}},
                     {"text_encoder_3", {"T5EncoderModel"}},
                     {"tokenizer", {"CLIPTokenizer", "CLIPTokenizerFast"}},
                     {"tokenizer_2", {"CLIPTokenizer", "CLIPTokenizerFast"}},
                     {"tokenizer_3", {"T5TokenizerFast", "T5Tokenizer"}},
                     {"transformer", {"SD3Transformer2DModel"}},
                     {"vae", {"AutoencoderKL"}}});
  return std::make_unique<Sd3Denoiser>(transformer_config(files));
}

// Rows of both CLIPs side by side, filled up with zeros to T5's width; then T5's rows, or zeros.
struct JoinedShape {
  int64_t t5_tokens, features;
};
Tensor joined_states(const Tensor& first, const Tensor& second, const Tensor* t5,
                     const JoinedShape& shape) {
  const int64_t rows = first.shape()[1], features = shape.features;
  const int64_t widths[] = {first.shape()[2], second.shape()[2]};
  Tensor all = Tensor::zeros(DType::kF32, {rows + shape.t5_tokens, features});
  const auto out = all.mutable_as<float>();
  for (int64_t r = 0; r < rows; ++r) {
    std::copy_n(first.as<float>().begin() + r * widths[0], widths[0], out.begin() + r * features);
    std::copy_n(second.as<float>().begin() + r * widths[1], widths[1],
                out.begin() + r * features + widths[0]);
  }
  if (t5 != nullptr) {
    std::copy_n(t5->as<float>().begin(), t5->numel(), out.begin() + rows * features);
  }
  return all;
}

Tensor joined_vectors(const Tensor& first, const Tensor& second) {
  Tensor all = Tensor::empty(DType::kF32, {first.numel() + second.numel()});
  const auto rest =
      std::copy_n(first.as<float>().begin(), first.numel(), all.mutable_as<float>().begin());
  std::copy_n(second.as<float>().begin(), second.numel(), rest);
  return all;
}

void check_texts_fit(const ModelFiles& files, bool fit, const std::string& what) {
  if (fit) return;
  throw Error(ErrorCode::kInvalidInput, files.base.string(), "components do not fit: {}", what);
}

// Two CLIPs and T5, which may be left out: it is most of what the model weighs.
std::unique_ptr<Conditioner> make_conditioner(const ModelFiles& files) {
  constexpr int64_t kT5Tokens = 256;
  JoinedConditioner::Parts parts;
  clip_text::Config first, second;
  // Single files are of code that takes the first one's vector as it is, and diffusers gives it the
  // identity for a projection, whatever the file holds.
  parts.encoders.push_back(clip_text::make_encoder(
      files, {"text_encoder", "tokenizer", true, true, clip_text::clip_l(), false}, &first));
  clip_text::EncoderPlace place = {"text_encoder_2", "tokenizer_2", true, true, clip_text::big_g()};
  place.comfy_name = "clip_g";
  parts.encoders.push_back(clip_text::make_encoder(files, place, &second));
  parts.features = transformer_config(files).joint_dim;
  const bool has_t5 = files.holds("text_encoder_3") || path_exists(files.of("text_encoder_3"));
  if (has_t5) {
    t5::Config t5;
    parts.encoders.push_back(
        t5::make_encoder(files, {"text_encoder_3", "tokenizer_3", kT5Tokens}, &t5));
    parts.longest = 2;
    check_texts_fit(files, t5.hidden_size == parts.features,
                    fmt::format("text states of {} for a transformer that takes {}", t5.hidden_size,
                                parts.features));
  }
  check_texts_fit(files, first.hidden_size + second.hidden_size <= parts.features,
                  fmt::format("text states of {} and {} for a transformer that takes {}",
                              first.hidden_size, second.hidden_size, parts.features));
  check_texts_fit(files, first.positions == second.positions,
                  fmt::format("text_encoder reads {} tokens, and text_encoder_2 {}",
                              first.positions, second.positions));
  parts.text_tokens = first.positions + kT5Tokens;
  parts.vectors = {{"pooled", first.projection + second.projection}};
  parts.join = [has_t5, features = parts.features](JoinedConditioner::Results r) -> Condition {
    const Tensor* t5 = has_t5 ? &r[2].at("states") : nullptr;
    return {
        {"text", joined_states(r[0].at("states"), r[1].at("states"), t5, {kT5Tokens, features})},
        {"pooled", joined_vectors(r[0].at("pooled"), r[1].at("pooled"))}};
  };
  return std::make_unique<JoinedConditioner>(std::move(parts));
}

std::unique_ptr<Codec> make_codec(const ModelFiles& files) {
  autoencoder_kl::Config usual;
  usual.scaling_factor = 1.5305f;
  usual.shift_factor = 0.0609f;
  return autoencoder_kl::make_codec(files, usual);
}

Sampling sampling(const ModelFiles& files) {
  Sampling usual;
  usual.scheduler = scheduler_of(files, "FlowMatchEulerDiscreteScheduler", {{"shift", 3.0}});
  usual.scheduler.flow.spacing = FlowSpacing::kTrained;  // diffusers gives it no sigmas
  usual.guidance_rule = GuidanceRule::kFromNegative;
  usual.steps = 28;
  // What the first version was shown with, and what 3.5 is: Medium, told by its dual layers, and
  // Large.
  const TransformerConfig config = transformer_config(files);
  usual.guidance = !config.norm_heads ? 7.0f : config.dual_layers.empty() ? 4.5f : 5.0f;
  return usual;
}

std::unique_ptr<Denoiser> published_large() {
  return std::make_unique<Sd3Denoiser>(TransformerConfig{});
}
std::unique_ptr<Denoiser> published_medium() {
  TransformerConfig config;
  config.layers = config.heads = 24;
  config.most_positions = 384;
  for (int64_t i = 0; i < 13; ++i) config.dual_layers.insert(i);
  return std::make_unique<Sd3Denoiser>(config);
}

}  // namespace

Family family() {
  return {"sd3",
          "Stable Diffusion 3",
          {"StableDiffusion3Pipeline"},
          is_sd3_file,
          make_denoiser,
          make_conditioner,
          make_codec,
          sampling,
          {{"large", published_large, 333}, {"medium", published_medium, 333}},
          {{"text_encoder", {"text_encoders.clip_l.transformer."}, "tokenizer"},
           {"text_encoder_2", {"text_encoders.clip_g.transformer."}, "tokenizer_2"},
           {"text_encoder_3", {"text_encoders.t5xxl.transformer."}, "tokenizer_3", true},
           {"vae", {"vae.", "first_stage_model."}}}};
}

}  // namespace halftone::sd3
