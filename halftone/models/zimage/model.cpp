#include "halftone/models/zimage/model.h"

#include <nlohmann/json.hpp>

#include "halftone/base/error.h"
#include "halftone/base/files.h"
#include "halftone/io/json.h"
#include "halftone/io/model_hash.h"
#include "halftone/io/tokenizer.h"
#include "halftone/models/autoencoder_kl/autoencoder.h"
#include "halftone/models/qwen3/text_encoder.h"
#include "halftone/models/weights.h"
#include "halftone/models/zimage/transformer.h"
#include "halftone/runtime/program.h"

namespace halftone::zimage {
namespace {

namespace fs = std::filesystem;

// Programs of one component, one per shape, all on the same weights.
class Component {
 public:
  Component(Weights weights, const LoadOptions& options)
      : weights_(std::move(weights)), options_(options) {}

  // The program of this key, built on first use.
  template <class Build>
  Program& program(const std::string& key, const Build& build) {
    auto& slot = programs_[key];
    if (!slot) {
      slot = std::make_unique<Program>(build(), weights_, *options_.kernels, options_.stream);
    }
    return *slot;
  }

  ModelMemory memory() const {
    ModelMemory sum;
    for (const auto& [name, tensor] : weights_) sum.weights += tensor.byte_size();
    for (const auto& [key, program] : programs_) sum.arenas += program->memory().arena;
    return sum;
  }

 private:
  Weights weights_;
  const LoadOptions& options_;
  std::map<std::string, std::unique_ptr<Program>> programs_;
};

class Model final : public DiffusionModel {
 public:
  Model(const fs::path& folder, const LoadOptions& options)
      : options_(options),
        tokenizer_(Tokenizer::load(folder / "tokenizer" / "tokenizer.json")),
        text_config_(qwen3::parse_config(read_json_file(folder / "text_encoder" / "config.json"),
                                         (folder / "text_encoder" / "config.json").string())),
        config_(parse_transformer_config(read_json_file(folder / "transformer" / "config.json"),
                                         (folder / "transformer" / "config.json").string())),
        vae_config_(autoencoder_kl::parse_config(read_json_file(folder / "vae" / "config.json"),
                                                 (folder / "vae" / "config.json").string())),
        text_file_(Checkpoint::open(folder / "text_encoder")),
        transformer_file_(Checkpoint::open(folder / "transformer")),
        vae_file_(Checkpoint::open(folder / "vae")),
        text_(load_text(text_file_), options_),
        transformer_(load_transformer(transformer_file_), options_),
        vae_(load_vae(vae_file_), options_) {
    check_configs(folder);
  }

  std::string family() const override { return "z-image"; }

  Shape latent_shape(int64_t width, int64_t height) const override {
    const int64_t multiple = vae_config_.scale() * config_.patch_size;
    if (width < multiple || height < multiple || width % multiple != 0 || height % multiple != 0) {
      throw Error(ErrorCode::kUsage, "--size",
                  "{}x{} is not allowed: width and height must be multiples of {}", width, height,
                  multiple);
    }
    const int64_t h = height / vae_config_.scale(), w = width / vae_config_.scale();
    if (h / config_.patch_size > config_.axes_lens[1] ||
        w / config_.patch_size > config_.axes_lens[2]) {
      throw Error(ErrorCode::kUsage, "--size", "{}x{} is more than the {}x{} of this model", width,
                  height, config_.axes_lens[2] * multiple, config_.axes_lens[1] * multiple);
    }
    return {1, config_.in_channels, h, w};
  }

  int64_t image_tokens(const Shape& latents) const override {
    return latents[2] * latents[3] / (config_.patch_size * config_.patch_size);
  }

  Condition encode(const std::string& prompt) override {
    const std::vector<int32_t> ids = tokenizer_.encode(chat_prompt(prompt));
    const auto count = static_cast<int64_t>(ids.size());
    if (count > kMaxPromptTokens) {
      throw Error(ErrorCode::kUsage, "prompt",
                  "{} tokens are more than the {} that the model reads", count, kMaxPromptTokens);
    }
    const int64_t tokens = padded_length(count);
    Program& program = text_.program(std::to_string(tokens), [&] {
      return qwen3::build_text_encoder(text_config_, 1, tokens, {options_.activations, false});
    });
    const auto results = program.run(qwen3::text_inputs(text_config_, tokens, {&ids, 1}));
    const Tensor states = results.at("states").reshape({tokens, text_config_.hidden_size});
    return {states.rows(0, count)};
  }

  Tensor velocity(const Tensor& latents, std::span<const float> sigmas,
                  std::span<const Condition> conditions) override {
    std::vector<Tensor> captions;
    for (const Condition& condition : conditions) captions.push_back(condition.states);
    std::vector<float> time;
    for (const float sigma : sigmas) time.push_back(1.0f - sigma);
    const TransformerShape shape = shape_for(latents, captions);
    const std::string key =
        fmt::format("{}x{}x{}+{}", shape.batch, shape.height, shape.width, shape.caption_tokens);
    Program& program = transformer_.program(
        key, [&] { return build_transformer(config_, shape, {options_.activations, false}); });
    auto results = program.run(transformer_inputs(config_, shape, latents, time, captions));
    Tensor sample = results.at("sample");
    for (float& v : sample.mutable_as<float>()) v = -v;  // the model predicts data minus noise
    return sample;
  }

  Tensor decode(const Tensor& latents) override {
    const Shape& s = latents.shape();
    Program& program = vae_.program(s.str(), [&] {
      return autoencoder_kl::build_decoder(vae_config_, s[0], s[2], s[3], {options_.activations});
    });
    return program.run({{"latents", latents}}).at("image");
  }

  std::string hash() const override {
    const Checkpoint* files[] = {&text_file_, &transformer_file_, &vae_file_};
    return model_hash(files);
  }

  ModelMemory memory() const override {
    ModelMemory sum;
    for (const Component* part : {&text_, &transformer_, &vae_}) {
      sum.weights += part->memory().weights;
      sum.arenas += part->memory().arenas;
    }
    return sum;
  }

 private:
  void check_configs(const fs::path& folder) const {
    const auto fail = [&](const std::string& reason) {
      throw Error(ErrorCode::kInvalidInput, folder.string(), "components do not fit: {}", reason);
    };
    if (text_config_.hidden_size != config_.cap_feat_dim) {
      fail(fmt::format("text states of {} for a transformer that takes {}",
                       text_config_.hidden_size, config_.cap_feat_dim));
    }
    if (vae_config_.latent_channels != config_.in_channels) {
      fail(fmt::format("a VAE of {} channels for a transformer of {}", vae_config_.latent_channels,
                       config_.in_channels));
    }
    if (tokenizer_.vocab_size() > text_config_.vocab_size) {
      fail(fmt::format("a tokenizer of {} tokens for a text encoder of {}", tokenizer_.vocab_size(),
                       text_config_.vocab_size));
    }
  }

  static std::string same_name(const std::string& name) { return name; }

  Weights load_text(const Checkpoint& checkpoint) const {
    const std::shared_ptr<Graph> graph = qwen3::build_text_encoder(text_config_, 1, 1, {});
    // Saved with or without a language model around it.
    const bool bare = checkpoint.find("embed_tokens.weight") != nullptr;
    const std::string prefix = bare ? "" : "model.";
    const auto name_in_file = [&](const std::string& name) {
      return prefix + name.substr(std::string_view("model.").size());
    };
    // The states before the last layer are what is used.
    const std::string last = fmt::format("{}layers.{}.", prefix, text_config_.layers - 1);
    return load_weights(checkpoint, {&graph, 1}, name_in_file, [&](std::string_view name) {
      return name.starts_with(last) || name == prefix + "norm.weight" || name == "lm_head.weight";
    });
  }

  Weights load_transformer(const Checkpoint& checkpoint) const {
    const std::shared_ptr<Graph> graph = build_transformer(
        config_, {1, config_.patch_size, config_.patch_size, kSequenceMultiple}, {});
    return load_weights(checkpoint, {&graph, 1}, same_name,
                        [](std::string_view name) { return name == "norm_final.weight"; });
  }

  Weights load_vae(const Checkpoint& checkpoint) const {
    const int64_t size = vae_config_.scale();
    const std::shared_ptr<Graph> graphs[] = {
        autoencoder_kl::build_decoder(vae_config_, 1, 1, 1, {}),
        autoencoder_kl::build_encoder(vae_config_, 1, size, size, {})};
    return load_weights(checkpoint, graphs, same_name, [](std::string_view) { return false; });
  }

  LoadOptions options_;
  Tokenizer tokenizer_;
  qwen3::Config text_config_;
  TransformerConfig config_;
  autoencoder_kl::Config vae_config_;
  Checkpoint text_file_, transformer_file_, vae_file_;
  Component text_, transformer_, vae_;
};

}  // namespace

std::string chat_prompt(const std::string& prompt) {
  return "<|im_start|>user\n" + prompt + "<|im_end|>\n<|im_start|>assistant\n";
}

bool is_zimage_folder(const fs::path& folder) {
  const fs::path index = folder / "model_index.json";
  if (!path_exists(index)) return false;
  const auto json = read_json_file(index);
  return json.is_object() && json.value("_class_name", nlohmann::json()) == "ZImagePipeline";
}

std::unique_ptr<DiffusionModel> load_model(const fs::path& folder, const LoadOptions& options) {
  return std::make_unique<Model>(folder, options);
}

}  // namespace halftone::zimage
