#include "halftone/models/zimage/family.h"

#include <nlohmann/json.hpp>

#include "halftone/base/error.h"
#include "halftone/base/files.h"
#include "halftone/graph/ops.h"
#include "halftone/io/json.h"
#include "halftone/models/autoencoder_kl/codec.h"
#include "halftone/models/folder.h"
#include "halftone/models/qwen3/conditioner.h"
#include "halftone/models/zimage/names.h"
#include "halftone/models/zimage/transformer.h"

namespace halftone::zimage {
namespace {

namespace fs = std::filesystem;

class ZImageDenoiser final : public Denoiser {
 public:
  explicit ZImageDenoiser(const TransformerConfig& config) : config_(config) {}

  std::string_view folder() const override { return "transformer"; }
  int64_t channels() const override { return config_.in_channels; }
  int64_t patch() const override { return config_.patch_size; }
  int64_t text_features() const override { return config_.cap_feat_dim; }

  std::array<int64_t, 2> most_patches() const override {
    return {config_.axes_lens[1], config_.axes_lens[2]};
  }

  DenoiserShape shape(const Shape& latents, std::span<const int64_t> texts) const override {
    DenoiserShape shape{static_cast<int64_t>(texts.size()), latents, 0, false};
    for (const int64_t text : texts) {
      const int64_t padded = padded_length(text);
      check_caption(config_, text);
      shape.ragged |= shape.text_tokens != 0 && shape.text_tokens != padded;
      shape.text_tokens = std::max(shape.text_tokens, padded);
    }
    return shape;
  }

  std::shared_ptr<Graph> build(const DenoiserShape& shape,
                               const BuildOptions& options) const override {
    return build_transformer(
        config_, own_shape(shape),
        {options.activations, options.tap_blocks, options.mark_ends, /*velocity=*/true});
  }

  NamedTensors inputs(const DenoiserShape& shape,
                      std::span<const Condition* const> rows) const override {
    std::vector<Tensor> captions;
    for (const Condition* row : rows) captions.push_back(row->at("text"));
    return caption_inputs(config_, own_shape(shape), captions);
  }

  float time(const SamplerStep& step) const override {
    return 1.0f - static_cast<float>(step.sigma);
  }

  WeightNames names(const Checkpoint& checkpoint) const override { return names_in(checkpoint); }
  QuantizeRecipe recipe(const Format& format) const override { return default_recipe(format); }
  LoraTargets lora_targets(const Graph& graph) const override {
    return zimage::lora_targets(graph);
  }

 private:
  static TransformerShape own_shape(const DenoiserShape& s) {
    return {s.rows, s.latents[1], s.latents[2], s.text_tokens, s.ragged};
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
  check_model_index(files.base, "ZImagePipeline",
                    {{"scheduler", {"FlowMatchEulerDiscreteScheduler"}},
                     {"text_encoder", {"Qwen3Model", "Qwen3ForCausalLM"}},
                     {"tokenizer",
                      {"Qwen2Tokenizer", "Qwen2TokenizerFast", "PreTrainedTokenizerFast",
                       "TokenizersBackend", "AutoTokenizer"}},
                     {"transformer", {"ZImageTransformer2DModel"}},
                     {"vae", {"AutoencoderKL"}}});
  return std::make_unique<ZImageDenoiser>(transformer_config(files));
}

std::unique_ptr<Conditioner> make_conditioner(const ModelFiles& files) {
  qwen3::ConditionerOptions options;
  options.chat_prompt = chat_prompt;
  options.multiple = kSequenceMultiple;
  return std::make_unique<qwen3::Qwen3Conditioner>(files, options);
}

std::unique_ptr<Codec> make_codec(const ModelFiles& files) {
  const fs::path config = files.of("vae") / "config.json";
  return std::make_unique<autoencoder_kl::KlCodec>(
      autoencoder_kl::parse_config(read_json_file(config), config.string()), WeightNames{});
}

Sampling sampling(const ModelFiles& files) {
  Sampling usual;
  usual.scheduler = scheduler_in(files.base, "FlowMatchEulerDiscreteScheduler");
  return usual;
}

bool is_denoiser(const Checkpoint& file) {
  return file.find(names_in(file).stored_as("cap_pad_token").name) != nullptr;
}

std::unique_ptr<Denoiser> published() {
  return std::make_unique<ZImageDenoiser>(TransformerConfig{});
}

}  // namespace

Family family() {
  return {"z-image",   "Z-Image",     {"ZImagePipeline"},
          is_denoiser, make_denoiser, make_conditioner,
          make_codec,  sampling,      {{"6b", published, 128}}};
}

std::string chat_prompt(const std::string& prompt) {
  return "<|im_start|>user\n" + prompt + "<|im_end|>\n<|im_start|>assistant\n";
}

}  // namespace halftone::zimage
