#include "halftone/models/flux2/family.h"

#include <nlohmann/json.hpp>

#include "halftone/base/error.h"
#include "halftone/base/files.h"
#include "halftone/io/json.h"
#include "halftone/models/autoencoder_kl/codec.h"
#include "halftone/models/flux2/names.h"
#include "halftone/models/flux2/transformer.h"
#include "halftone/models/folder.h"
#include "halftone/models/qwen3/conditioner.h"

namespace halftone::flux2 {
namespace {

namespace fs = std::filesystem;

class Flux2Denoiser final : public Denoiser {
 public:
  explicit Flux2Denoiser(const TransformerConfig& config) : config_(config) {}

  std::string_view folder() const override { return "transformer"; }
  int64_t channels() const override { return config_.in_channels; }
  int64_t patch() const override { return 1; }
  int64_t text_features() const override { return config_.joint_dim; }

  DenoiserShape shape(const Shape& latents, std::span<const int64_t> texts) const override {
    return {static_cast<int64_t>(texts.size()), latents, texts[0], false};
  }

  std::shared_ptr<Graph> build(const DenoiserShape& shape,
                               const BuildOptions& options) const override {
    const TransformerShape own{shape.rows, shape.latents[1], shape.latents[2], shape.text_tokens};
    return build_transformer(config_, own,
                             {options.activations, options.tap_blocks, options.mark_ends});
  }

  NamedTensors inputs(const DenoiserShape& shape,
                      std::span<const Condition* const> rows) const override {
    std::vector<Tensor> texts;
    for (const Condition* row : rows) texts.push_back(row->at("text"));
    const Shape& one = shape.latents;
    const Tensor latents = Tensor::empty(DType::kF32, {shape.rows, one[0], one[1], one[2]});
    const std::vector<float> sigmas(static_cast<size_t>(shape.rows));
    NamedTensors inputs = transformer_inputs(config_, latents, sigmas, texts);
    inputs.erase("latents");
    inputs.erase("time");
    return inputs;
  }

  float time(const SamplerStep& step) const override { return static_cast<float>(step.sigma); }

  WeightNames names(const Checkpoint& checkpoint) const override { return names_in(checkpoint); }
  QuantizeRecipe recipe(const Format& format) const override { return default_recipe(format); }
  LoraTargets lora_targets(const Graph& graph) const override { return flux2::lora_targets(graph); }

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
  check_model_index(files.base, "Flux2KleinPipeline",
                    {{"scheduler", {"FlowMatchEulerDiscreteScheduler"}},
                     {"text_encoder", {"Qwen3ForCausalLM", "Qwen3Model"}},
                     {"tokenizer",
                      {"Qwen2TokenizerFast", "Qwen2Tokenizer", "PreTrainedTokenizerFast",
                       "TokenizersBackend", "AutoTokenizer"}},
                     {"transformer", {"Flux2Transformer2DModel"}},
                     {"vae", {"AutoencoderKLFlux2"}}},
                    [](const ConfigReader& read) { read.boolean("is_distilled", false); });
  return std::make_unique<Flux2Denoiser>(transformer_config(files));
}

// One turn of a user, and an answer that skips its thoughts.
std::string chat_prompt(const std::string& prompt) {
  return "<|im_start|>user\n" + prompt +
         "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";
}

std::unique_ptr<Conditioner> make_conditioner(const ModelFiles& files) {
  qwen3::ConditionerOptions options;
  options.chat_prompt = chat_prompt;
  options.thinking = false;
  options.states_after = {9, 18, 27};
  options.padded = true;
  return std::make_unique<qwen3::Qwen3Conditioner>(files, options);
}

std::unique_ptr<Codec> make_codec(const ModelFiles& files) {
  const fs::path file = files.of("vae") / "config.json";
  auto config = autoencoder_kl::parse_flux2_config(read_json_file(file), file.string());
  autoencoder_kl::read_statistics(config, Checkpoint::open(files.of("vae")));
  return std::make_unique<autoencoder_kl::KlCodec>(std::move(config),
                                                   autoencoder_kl::flux2_weight_names());
}

bool is_distilled(const ModelFiles& files) {
  const fs::path index = files.base / "model_index.json";
  if (!path_exists(index)) return true;
  const std::string where = index.string();
  const auto content = read_json_file(index);
  return ConfigReader(content, where).boolean("is_distilled", false);
}

Sampling sampling(const ModelFiles& files) {
  Sampling usual;
  usual.scheduler = scheduler_in(files.base, "FlowMatchEulerDiscreteScheduler");
  usual.scheduler.flow.mu_rule = MuRule::kFlux2;
  const bool distilled = is_distilled(files);
  // What a distilled one predicts is guided already; diffusers passes over a guidance for it.
  usual.guidance_rule = distilled ? GuidanceRule::kNone : GuidanceRule::kFromNegative;
  usual.steps = distilled ? 4 : 50;
  usual.guidance = distilled ? 0.0f : 4.0f;
  return usual;
}

std::unique_ptr<Denoiser> published_4b() {
  return std::make_unique<Flux2Denoiser>(TransformerConfig{});
}
std::unique_ptr<Denoiser> published_9b() {
  TransformerConfig config;
  config.layers = 8;
  config.single_layers = 24;
  config.heads = 32;
  config.joint_dim = 12288;
  return std::make_unique<Flux2Denoiser>(config);
}

}  // namespace

Family family() {
  return {"flux.2-klein", "FLUX.2-klein", {"Flux2KleinPipeline"},
          is_flux2_file,  make_denoiser,  make_conditioner,
          make_codec,     sampling,       {{"4b", published_4b, 512}, {"9b", published_9b, 512}}};
}

}  // namespace halftone::flux2
