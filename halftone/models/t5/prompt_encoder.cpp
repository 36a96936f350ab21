#include "halftone/models/t5/prompt_encoder.h"

#include <nlohmann/json.hpp>

#include "halftone/io/json.h"
#include "halftone/models/folder.h"
#include "halftone/models/t5/names.h"

namespace halftone::t5 {
namespace {

class T5PromptEncoder final : public PromptEncoder {
 public:
  T5PromptEncoder(const ModelFiles& files, const EncoderPlace& place, const Config& config)
      : folder_(place.folder),
        within_(files.within(place.folder)),
        config_(config),
        tokenizer_(files.of(place.tokenizer), place.tokens, config.vocab_size) {}

  const std::string& folder() const override { return folder_; }
  int64_t tokens() const override { return tokenizer_.tokens(); }
  std::vector<int32_t> tokenize(const std::string& prompt) const override {
    return tokenizer_.encode(prompt);
  }
  int64_t cut(const std::string& prompt) const override { return tokenizer_.cut(prompt); }

  std::shared_ptr<Graph> build(const BuildOptions& how) const override {
    Options options;
    options.activations = how.activations;
    return build_text_encoder(config_, 1, tokens(), options);
  }
  NamedTensors inputs(const std::vector<int32_t>& ids) const override {
    return text_inputs(config_, {}, tokens(), {&ids, 1});
  }
  WeightNames names(const Checkpoint& checkpoint) const override {
    return names_in(checkpoint, within_);
  }
  QuantizeRecipe recipe(const Format& format) const override { return layers_recipe(format); }

 private:
  std::string folder_, within_;
  Config config_;
  PromptTokenizer tokenizer_;
};

}  // namespace

std::unique_ptr<PromptEncoder> make_encoder(const ModelFiles& files, const EncoderPlace& place,
                                            Config* found) {
  const auto file = files.of(place.folder) / "config.json";
  const Config config =
      has_config(files, place.folder)
          ? parse_config(read_json_file(file), file.string())
          : infer_config(Checkpoint::open(files.weights(place.folder)), files.within(place.folder));
  if (found != nullptr) *found = config;
  return std::make_unique<T5PromptEncoder>(files, place, config);
}

}  // namespace halftone::t5
