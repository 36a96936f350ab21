#include "halftone/models/clip_text/prompt_encoder.h"

#include <nlohmann/json.hpp>

#include "halftone/io/json.h"
#include "halftone/models/clip_text/names.h"
#include "halftone/models/folder.h"

namespace halftone::clip_text {
namespace {

class ClipPromptEncoder final : public PromptEncoder {
 public:
  ClipPromptEncoder(const ModelFiles& files, const EncoderPlace& place, const Config& config,
                    const Options& options)
      : folder_(place.folder),
        comfy_name_(place.comfy_name),
        within_(files.within(place.folder)),
        config_(config),
        options_(options),
        tokenizer_(files.of(place.tokenizer), config.positions, config.vocab_size) {}

  const std::string& folder() const override { return folder_; }
  int64_t tokens() const override { return tokenizer_.tokens(); }
  std::vector<int32_t> tokenize(const std::string& prompt) const override {
    return tokenizer_.encode(prompt);
  }
  int64_t cut(const std::string& prompt) const override { return tokenizer_.cut(prompt); }

  std::shared_ptr<Graph> build(const BuildOptions& how) const override {
    return build_rows(1, how);
  }
  std::shared_ptr<Graph> build_rows(int64_t rows, const BuildOptions& how) const override {
    Options options = options_;
    options.activations = how.activations;
    return build_text_encoder(config_, rows, tokens(), options);
  }
  NamedTensors inputs(const std::vector<int32_t>& ids) const override {
    return inputs_of_rows({&ids, 1});
  }
  NamedTensors inputs_of_rows(std::span<const std::vector<int32_t>> prompts) const override {
    return text_inputs(config_, options_, tokens(), prompts);
  }
  WeightNames names(const Checkpoint& checkpoint) const override {
    return names_in(checkpoint, config_, options_, within_);
  }
  QuantizeRecipe recipe(const Format& format) const override { return layers_recipe(format); }
  LoraTargets lora_targets() const override { return clip_text::lora_targets(*build({}), config_); }
  std::string comfy_name() const override { return comfy_name_; }

 private:
  std::string folder_, comfy_name_, within_;
  Config config_;
  Options options_;
  PromptTokenizer tokenizer_;
};

}  // namespace

std::unique_ptr<PromptEncoder> make_encoder(const ModelFiles& files, const EncoderPlace& place,
                                            Config* found) {
  const auto file = files.of(place.folder) / "config.json";
  Config config;
  if (has_config(files, place.folder)) {
    config = parse_config(read_json_file(file), file.string());
  } else {
    config = infer_config(Checkpoint::open(files.weights(place.folder)), files.within(place.folder),
                          place.usual);
  }
  Options options;
  options.pooled = place.pooled;
  options.projected = place.projected;
  if (files.holds(place.folder) && !place.projected_in_file) {
    options.projected = false;
    config.projection = config.hidden_size;
  }
  if (place.states_before_last) options.states_after = config.layers - 1;
  if (found != nullptr) *found = config;
  return std::make_unique<ClipPromptEncoder>(files, place, config, options);
}

}  // namespace halftone::clip_text
