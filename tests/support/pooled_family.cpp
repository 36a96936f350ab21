#include "tests/support/pooled_family.h"

#include "halftone/base/error.h"
#include "halftone/io/safetensors_writer.h"
#include "halftone/nn/attention.h"
#include "halftone/nn/pictures.h"
#include "tests/support/procedural.h"

namespace halftone::test {
namespace {

namespace fs = std::filesystem;
using nn::Bias;
using nn::Scope;

constexpr int64_t kChannels = 4, kHidden = 32, kVocabulary = 64;

class PooledDenoiser final : public Denoiser {
 public:
  std::string_view folder() const override { return "transformer"; }
  int64_t channels() const override { return kChannels; }
  int64_t patch() const override { return 1; }
  int64_t text_features() const override { return kPooledText; }
  VectorWidths vectors() const override { return {{"pooled", kPooledWidth}}; }

  DenoiserShape shape(const Shape& latents, std::span<const int64_t> texts) const override {
    return {static_cast<int64_t>(texts.size()), latents, texts[0], false};
  }
  std::shared_ptr<Graph> build(const DenoiserShape& s, const BuildOptions& how) const override {
    auto graph = std::make_shared<Graph>();
    const auto input = [&](const char* name, const Shape& shape) {
      return cast(graph->input(name, {shape, DType::kF32, {}}), how.activations);
    };
    const Scope root(*graph, "");
    const Value latents = input("latents", {s.rows, s.latents[0], s.latents[1], s.latents[2]});
    const Value time = input("time", {s.rows});
    const Value text = input("text", {s.rows, s.text_tokens, kPooledText});
    const Value pooled = input("pooled", {s.rows, kPooledWidth});
    const Value x = nn::linear(root["in"], nn::tokens_of(latents), kHidden, Bias::kYes);
    Value y = x;
    {
      const auto region = graph->region("block", "blocks.0");
      const Scope block = root["blocks.0"];
      const auto heads = [&](const char* name, Value from) {
        return nn::split_heads(nn::linear(block[name], from, kHidden, Bias::kNo), kHidden);
      };
      const Value seen = nn::attend(heads("q", x), heads("k", text), heads("v", text));
      const Value all = nn::linear(block["pooled"], pooled, kHidden, Bias::kNo);
      y = x + silu(seen + reshape(all, {s.rows, 1, kHidden}) * reshape(time, {s.rows, 1, 1}));
    }
    const Value out = nn::linear(root["out"], y, kChannels, Bias::kNo);
    graph->output("sample", cast(nn::picture_of(out, s.latents[1], s.latents[2]), DType::kF32));
    return graph;
  }
  NamedTensors inputs(const DenoiserShape&, std::span<const Condition* const> rows) const override {
    return {{"text", stacked(rows, "text")}, {"pooled", stacked(rows, "pooled")}};
  }
  float time(const SamplerStep& step) const override { return static_cast<float>(step.sigma); }
  WeightNames names(const Checkpoint&) const override { return {}; }
  QuantizeRecipe recipe(const Format& format) const override {
    QuantizeRecipe recipe;
    recipe.format = format;
    recipe.include = {"blocks.*.weight"};
    return recipe;
  }
  LoraTargets lora_targets(const Graph&) const override { return {}; }
};

class PooledConditioner final : public Conditioner {
 public:
  explicit PooledConditioner(int64_t width) : width_(width) {}

  std::vector<std::string> folders() const override { return {"text_encoder", "text_encoder_2"}; }
  int64_t features() const override { return kPooledText; }
  VectorWidths vectors() const override {
    return width_ == 0 ? VectorWidths{} : VectorWidths{{"pooled", width_}};
  }
  PromptTokens tokenize(const std::string& prompt) const override {
    std::vector<int32_t> first(kPooledTokens), second(kPooledTokens, 1);
    for (size_t i = 0; i < std::min<size_t>(prompt.size(), kPooledTokens); ++i) {
      first[i] = static_cast<unsigned char>(prompt[i]) % kVocabulary;
      second[i] = first[i] * 7 % kVocabulary;
    }
    return {first, second};
  }
  int64_t text_tokens(const PromptTokens&) const override { return kPooledTokens; }
  int64_t tokens(size_t index, const PromptTokens& prompt) const override {
    return static_cast<int64_t>(prompt[index].size());
  }
  std::shared_ptr<Graph> build(size_t index, int64_t tokens, const BuildOptions&) const override {
    auto graph = std::make_shared<Graph>();
    const Value ids = graph->input("ids", {{1, tokens}, DType::kI32, {}});
    const int64_t width = index == 0 ? kPooledText : std::max<int64_t>(1, width_);
    const Value states = embedding(ids, Scope(*graph, "").weight("table", {kVocabulary, width}));
    graph->output("states", index == 0 ? states : sum_to(states, {1, width}));
    return graph;
  }
  NamedTensors inputs(size_t index, const PromptTokens& prompt) const override {
    Tensor ids = Tensor::empty(DType::kI32, {1, tokens(index, prompt)});
    std::copy(prompt[index].begin(), prompt[index].end(), ids.mutable_as<int32_t>().begin());
    return {{"ids", ids}};
  }
  WeightNames names(size_t, const Checkpoint&) const override { return {}; }
  QuantizeRecipe recipe(size_t, const Format& format) const override {
    QuantizeRecipe recipe;
    recipe.format = format;
    return recipe;
  }
  Condition condition(const PromptTokens&, std::span<const NamedTensors> results) const override {
    Condition made{{"text", results[0].at("states").reshape({kPooledTokens, kPooledText})}};
    if (width_ != 0) made["pooled"] = results[1].at("states").reshape({width_});
    return made;
  }

 private:
  int64_t width_;
};

class PooledCodec final : public Codec {
 public:
  std::string_view folder() const override { return "vae"; }
  int64_t channels() const override { return kChannels; }
  int64_t scale() const override { return 2; }
  std::shared_ptr<Graph> decoder(const Shape& s, const BuildOptions&) const override {
    auto graph = std::make_shared<Graph>();
    const Value x = graph->input("latents", {s, DType::kF32, {}});
    const Value weight = Scope(*graph, "").weight("decoder.weight", {3, kChannels, 1, 1});
    graph->output("image", upsample2x(conv2d(x, weight, {}, {})));
    return graph;
  }
  std::shared_ptr<Graph> encoder(const Shape& s, const BuildOptions&) const override {
    auto graph = std::make_shared<Graph>();
    const Value x = graph->input("image", {s, DType::kF32, {}});
    const Value weight = Scope(*graph, "").weight("encoder.weight", {kChannels, 3, 2, 2});
    graph->output("latents", conv2d(x, weight, {}, {2, {0, 0, 0, 0}}));
    return graph;
  }
  WeightNames names(const Checkpoint&) const override { return {}; }
};

std::unique_ptr<Denoiser> make_denoiser(const ModelFiles&) {
  return std::make_unique<PooledDenoiser>();
}
template <int64_t kWidth>
std::unique_ptr<Conditioner> make_conditioner(const ModelFiles&) {
  return std::make_unique<PooledConditioner>(kWidth);
}
std::unique_ptr<Codec> make_codec(const ModelFiles&) { return std::make_unique<PooledCodec>(); }
Sampling sampling(const ModelFiles&) {
  Sampling usual;
  usual.guidance_rule = GuidanceRule::kFromNegative;
  return usual;
}

template <int64_t kWidth>
const Family& family_of() {
  static const Family kFamily = {"pooled",
                                 "Pooled",
                                 {},
                                 [](const Checkpoint&) { return false; },
                                 make_denoiser,
                                 make_conditioner<kWidth>,
                                 make_codec,
                                 sampling};
  return kFamily;
}

}  // namespace

const Family& pooled_family() { return family_of<kPooledWidth>(); }
const Family& family_with_wider_vectors() { return family_of<kPooledWidth + 2>(); }
const Family& family_without_vectors() { return family_of<0>(); }

FoundModel write_pooled_model(const fs::path& folder, const Family& family) {
  const FoundModel found{&family, {folder, {}}};
  const auto write = [&](const std::string& part, std::vector<std::shared_ptr<Graph>> graphs) {
    std::vector<std::pair<std::string, Tensor>> tensors;
    for (const auto& graph : graphs) {
      for (const auto& [name, weight] : procedural_weights(*graph)) {
        tensors.emplace_back(name, std::get<Tensor>(weight));
      }
    }
    fs::create_directories(folder / part);
    write_safetensors(folder / part / "model.safetensors", tensors);
  };
  const auto denoiser = family.denoiser(found.files);
  const auto conditioner = family.conditioner(found.files);
  const auto codec = family.codec(found.files);
  write("transformer", {denoiser->build(denoiser->smallest_shape(), {})});
  write("text_encoder", {conditioner->build(0, 1, {})});
  write("text_encoder_2", {conditioner->build(1, 1, {})});
  write("vae", {codec->decoder({1, kChannels, 1, 1}, {}), codec->encoder({1, 3, 2, 2}, {})});
  return found;
}

}  // namespace halftone::test
