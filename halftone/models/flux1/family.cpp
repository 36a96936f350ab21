#include "halftone/models/flux1/family.h"

#include <nlohmann/json.hpp>

#include "halftone/base/error.h"
#include "halftone/base/files.h"
#include "halftone/io/json.h"
#include "halftone/models/autoencoder_kl/codec.h"
#include "halftone/models/clip_text/prompt_encoder.h"
#include "halftone/models/flux1/names.h"
#include "halftone/models/flux1/transformer.h"
#include "halftone/models/folder.h"
#include "halftone/models/t5/prompt_encoder.h"

namespace halftone::flux1 {
namespace {

namespace fs = std::filesystem;

constexpr float kUsualGuidance = 3.5f;

class FluxDenoiser final : public Denoiser {
 public:
  explicit FluxDenoiser(const TransformerConfig& config) : config_(config) {}

  std::string_view folder() const override { return "transformer"; }
  int64_t channels() const override { return config_.latent_channels(); }
  int64_t patch() const override { return TransformerConfig::kPatch; }
  int64_t text_features() const override { return config_.joint_dim; }
  VectorWidths vectors() const override { return {{"pooled", config_.pooled_dim}}; }
  bool reads_guidance() const override { return config_.guidance; }

  DenoiserShape shape(const Shape& latents, std::span<const int64_t> texts) const override {
    return {static_cast<int64_t>(texts.size()), latents, texts[0], false};
  }

  std::shared_ptr<Graph> build(const DenoiserShape& shape,
                               const BuildOptions& options) const override {
    return build_transformer(config_, own_shape(shape),
                             {options.activations, options.tap_blocks, options.mark_ends});
  }

  NamedTensors inputs(const DenoiserShape& shape,
                      std::span<const Condition* const> rows) const override {
    NamedTensors inputs = position_inputs(config_, own_shape(shape));
    inputs["text"] = stacked(rows, "text");
    inputs["pooled"] = stacked(rows, "pooled");
    if (!config_.guidance) return inputs;
    Tensor guidance = Tensor::empty(DType::kF32, {shape.rows});
    for (size_t i = 0; i < rows.size(); ++i) {
      const auto told = rows[i]->find(kGuidanceOfCondition);
      guidance.mutable_as<float>()[i] =
          told == rows[i]->end() ? kUsualGuidance : told->second.as<float>()[0];
    }
    inputs["told.guidance"] = guidance;
    return inputs;
  }

  float time(const SamplerStep& step) const override { return static_cast<float>(step.sigma); }

  WeightNames names(const Checkpoint& checkpoint) const override { return names_in(checkpoint); }
  QuantizeRecipe recipe(const Format& format) const override { return default_recipe(format); }
  LoraTargets lora_targets(const Graph& graph) const override { return flux1::lora_targets(graph); }

 private:
  static TransformerShape own_shape(const DenoiserShape& s) {
    return {s.rows, s.latents[1], s.latents[2], s.text_tokens};
  }

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
  check_model_index(files.base, "FluxPipeline",
                    {{"scheduler", {"FlowMatchEulerDiscreteScheduler"}},
                     {"text_encoder", {"CLIPTextModel"}},
                     {"text_encoder_2", {"T5EncoderModel"}},
                     {"tokenizer", {"CLIPTokenizer", "CLIPTokenizerFast"}},
                     {"tokenizer_2", {"T5TokenizerFast", "T5Tokenizer"}},
                     {"transformer", {"FluxTransformer2DModel"}},
                     {"vae", {"AutoencoderKL"}}});
  return std::make_unique<FluxDenoiser>(transformer_config(files));
}

// CLIP's vector of the prompt and T5's states of its tokens.
std::unique_ptr<Conditioner> make_conditioner(const ModelFiles& files) {
  JoinedConditioner::Parts parts;
  clip_text::Config clip;
  t5::Config t5;
  parts.text_tokens = transformer_config(files).guidance ? 512 : 256;
  parts.encoders.push_back(clip_text::make_encoder(files, {"text_encoder", "tokenizer"}, &clip));
  parts.encoders.push_back(
      t5::make_encoder(files, {"text_encoder_2", "tokenizer_2", parts.text_tokens}, &t5));
  parts.longest = 1;
  parts.features = t5.hidden_size;
  parts.vectors = {{"pooled", clip.hidden_size}};
  parts.join = [](JoinedConditioner::Results results) -> Condition {
    const Tensor& pooled = results[0].at("pooled");
    const Tensor& states = results[1].at("states");
    return {{"text", states.reshape({states.shape()[1], states.shape()[2]})},
            {"pooled", pooled.reshape({pooled.shape()[1]})}};
  };
  return std::make_unique<JoinedConditioner>(std::move(parts));
}

std::unique_ptr<Codec> make_codec(const ModelFiles& files) {
  const fs::path config = files.of("vae") / "config.json";
  return std::make_unique<autoencoder_kl::KlCodec>(
      autoencoder_kl::parse_config(read_json_file(config), config.string()), WeightNames{});
}

// Two kinds are told by whether the network reads guidance: dev does, and schnell, which is
// distilled to few steps, does not.
Sampling sampling(const ModelFiles& files) {
  Sampling usual;
  usual.scheduler = scheduler_in(files.base, "FlowMatchEulerDiscreteScheduler");
  usual.guidance_rule = GuidanceRule::kFromNegative;
  const bool dev = transformer_config(files).guidance;
  usual.embedded_guidance = dev;
  usual.steps = dev ? 28 : 4;
  usual.guidance = dev ? kUsualGuidance : 0.0f;
  return usual;
}

std::unique_ptr<Denoiser> published_dev() {
  return std::make_unique<FluxDenoiser>(TransformerConfig{});
}
std::unique_ptr<Denoiser> published_schnell() {
  TransformerConfig config;
  config.guidance = false;
  return std::make_unique<FluxDenoiser>(config);
}

}  // namespace

Family family() {
  return {"flux.1",
          "FLUX.1",
          {"FluxPipeline"},
          is_flux1_file,
          make_denoiser,
          make_conditioner,
          make_codec,
          sampling,
          {{"dev", published_dev, 512}, {"schnell", published_schnell, 256}}};
}

}  // namespace halftone::flux1
