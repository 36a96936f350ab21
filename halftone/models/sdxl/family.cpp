#include "halftone/models/sdxl/family.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "halftone/base/error.h"
#include "halftone/base/files.h"
#include "halftone/graph/ops.h"
#include "halftone/io/json.h"
#include "halftone/models/autoencoder_kl/codec.h"
#include "halftone/models/clip_text/prompt_encoder.h"
#include "halftone/models/folder.h"
#include "halftone/models/sdxl/names.h"
#include "halftone/models/sdxl/unet.h"

namespace halftone::sdxl {
namespace {

namespace fs = std::filesystem;

class SdxlDenoiser final : public Denoiser {
 public:
  explicit SdxlDenoiser(UnetConfig config) : config_(std::move(config)) {}

  std::string_view folder() const override { return "unet"; }
  int64_t channels() const override { return config_.in_channels; }
  int64_t patch() const override { return config_.multiple(); }
  int64_t text_features() const override { return config_.text_dim; }
  bool reads_sizes() const override { return true; }
  VectorWidths vectors() const override { return {{"pooled", config_.pooled_dim}}; }

  DenoiserShape shape(const Shape& latents, std::span<const int64_t> texts) const override {
    return {static_cast<int64_t>(texts.size()), latents, texts[0], false};
  }

  std::shared_ptr<Graph> build(const DenoiserShape& s, const BuildOptions& options) const override {
    return build_unet(config_, {s.rows, s.latents[1], s.latents[2], s.text_tokens},
                      {options.activations, options.tap_blocks, options.mark_ends});
  }

  NamedTensors inputs(const DenoiserShape&, std::span<const Condition* const> rows) const override {
    return {{"text", stacked(rows, "text")},
            {"pooled", stacked(rows, "pooled")},
            {kSizesOfCondition, stacked(rows, kSizesOfCondition)}};
  }

  float time(const SamplerStep& step) const override { return static_cast<float>(step.timestep); }

  WeightNames names(const Checkpoint& checkpoint) const override { return names_in(checkpoint); }
  QuantizeRecipe recipe(const Format& format) const override { return default_recipe(format); }
  LoraTargets lora_targets(const Graph& graph) const override {
    return sdxl::lora_targets(graph, config_);
  }

 private:
  UnetConfig config_;
};

// The U-Net's config: the folder's, or, for a file alone, what its tensors tell.
UnetConfig unet_config(const ModelFiles& files) {
  const fs::path config = files.of("unet") / "config.json";
  if (files.denoiser.empty() || path_exists(config)) {
    return parse_unet_config(read_json_file(config), config.string());
  }
  const Checkpoint checkpoint = Checkpoint::open(files.denoiser);
  return infer_unet_config(checkpoint, names_in(checkpoint));
}

constexpr const char* kForceZeros = "force_zeros_for_empty_prompt";

std::unique_ptr<Denoiser> make_denoiser(const ModelFiles& files) {
  check_model_index(files.base, "StableDiffusionXLPipeline",
                    {{"scheduler",
                      {"EulerDiscreteScheduler", "EulerAncestralDiscreteScheduler", "DDIMScheduler",
                       "DPMSolverMultistepScheduler", "UniPCMultistepScheduler"}},
                     {"text_encoder", {"CLIPTextModel"}},
                     {"text_encoder_2", {"CLIPTextModelWithProjection"}},
                     {"tokenizer", {"CLIPTokenizer", "CLIPTokenizerFast"}},
                     {"tokenizer_2", {"CLIPTokenizer", "CLIPTokenizerFast"}},
                     {"unet", {"UNet2DConditionModel"}},
                     {"vae", {"AutoencoderKL"}}},
                    [](const ConfigReader& read) {
                      read.boolean(kForceZeros, true);
                      read.ignore({"add_watermarker"});
                    });
  return std::make_unique<SdxlDenoiser>(unet_config(files));
}

// Whether no negative prompt is zeros rather than the empty prompt.
bool zeros_without_negative(const ModelFiles& files) {
  const fs::path index = files.base / "model_index.json";
  if (!path_exists(index)) return true;
  const auto json = read_json_file(index);
  return ConfigReader(json, index.string()).boolean(kForceZeros, true);
}

// Rows of both encoders side by side.
Tensor joined_states(const Tensor& first, const Tensor& second) {
  const int64_t rows = first.shape()[1];
  const int64_t widths[] = {first.shape()[2], second.shape()[2]};
  Tensor all = Tensor::empty(DType::kF32, {rows, widths[0] + widths[1]});
  auto out = all.mutable_as<float>().begin();
  for (int64_t r = 0; r < rows; ++r) {
    out = std::copy_n(first.as<float>().begin() + r * widths[0], widths[0], out);
    out = std::copy_n(second.as<float>().begin() + r * widths[1], widths[1], out);
  }
  return all;
}

// Of the first encoder the states before its last layer, which does not run; of the second these
// and the projected vector.
std::unique_ptr<Conditioner> make_conditioner(const ModelFiles& files) {
  JoinedConditioner::Parts parts;
  clip_text::Config first, second;
  clip_text::EncoderPlace place;
  place.folder = "text_encoder";
  place.tokenizer = "tokenizer";
  place.states_before_last = true;
  place.pooled = false;
  parts.encoders.push_back(clip_text::make_encoder(files, place, &first));
  place = {"text_encoder_2", "tokenizer_2", true, true, clip_text::big_g()};
  place.comfy_name = "clip_g";
  parts.encoders.push_back(clip_text::make_encoder(files, place, &second));
  if (first.positions != second.positions) {
    throw Error(ErrorCode::kInvalidInput, files.base.string(),
                "components do not fit: text_encoder reads {} tokens, and text_encoder_2 {}",
                first.positions, second.positions);
  }
  parts.text_tokens = first.positions;
  parts.features = first.hidden_size + second.hidden_size;
  parts.vectors = {{"pooled", second.projection}};
  parts.join = [](JoinedConditioner::Results r) -> Condition {
    const Tensor& pooled = r[1].at("pooled");
    return {{"text", joined_states(r[0].at("states"), r[1].at("states"))},
            {"pooled", pooled.reshape({pooled.numel()})}};
  };
  using Values = JoinedConditioner::Parts::Values;
  parts.join_values = [](std::span<const Values> r) -> Values {
    return {{"text", concat({r[0].at("states"), r[1].at("states")}, 2)},
            {"pooled", r[1].at("pooled")}};
  };
  if (zeros_without_negative(files)) {
    parts.without_negative =
        Condition{{"text", Tensor::zeros(DType::kF32, {parts.text_tokens, parts.features})},
                  {"pooled", Tensor::zeros(DType::kF32, {second.projection})}};
  }
  return std::make_unique<JoinedConditioner>(std::move(parts));
}

std::unique_ptr<Codec> make_codec(const ModelFiles& files) {
  autoencoder_kl::Config usual;
  usual.scaling_factor = 0.13025f;
  usual.shift_factor = 0;
  return autoencoder_kl::make_codec(files, usual);
}

Sampling sampling(const ModelFiles& files) {
  Sampling usual;
  usual.scheduler = scheduler_of(files, "EulerDiscreteScheduler",
                                 {{"beta_start", 0.00085},
                                  {"beta_end", 0.012},
                                  {"beta_schedule", "scaled_linear"},
                                  {"timestep_spacing", "leading"},
                                  {"steps_offset", 1}});
  if (!files.denoiser.empty()) {
    const FileMarks marks = marks_of(Checkpoint::open(files.denoiser));
    if (marks.v_prediction) usual.scheduler.prediction = Prediction::kV;
    if (marks.zero_terminal_snr) {
      usual.scheduler.zero_terminal_snr = true;
      usual.scheduler.timestep_spacing = TimestepSpacing::kTrailing;  // which begins at that end
    }
  }
  usual.guidance_rule = GuidanceRule::kFromNegative;
  usual.steps = 50;
  usual.guidance = 5;
  return usual;
}

std::unique_ptr<Denoiser> published_base() { return std::make_unique<SdxlDenoiser>(UnetConfig{}); }

}  // namespace

Family family() {
  return {"sdxl",
          "SDXL",
          {"StableDiffusionXLPipeline", "StableDiffusionXLImg2ImgPipeline"},
          is_sdxl_file,
          make_denoiser,
          make_conditioner,
          make_codec,
          sampling,
          {{"base", published_base, 77, 1024}},
          {{"text_encoder", {"conditioner.embedders.0.transformer."}, "tokenizer"},
           {"text_encoder_2", {"conditioner.embedders.1.model."}, "tokenizer_2"},
           {"vae", {"first_stage_model.", "vae."}}}};
}

}  // namespace halftone::sdxl
