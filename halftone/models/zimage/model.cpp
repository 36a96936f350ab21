#include "halftone/models/zimage/model.h"

#include <nlohmann/json.hpp>
#include <set>

#include "halftone/base/error.h"
#include "halftone/base/files.h"
#include "halftone/io/chat_template.h"
#include "halftone/io/json.h"
#include "halftone/io/model_hash.h"
#include "halftone/io/tokenizer.h"
#include "halftone/models/autoencoder_kl/autoencoder.h"
#include "halftone/models/component.h"
#include "halftone/models/lora.h"
#include "halftone/models/qwen3/text_encoder.h"
#include "halftone/models/weights.h"
#include "halftone/models/zimage/folder.h"
#include "halftone/models/zimage/names.h"
#include "halftone/models/zimage/transformer.h"
#include "halftone/numerics/bf16.h"

namespace halftone::zimage {
namespace {

namespace fs = std::filesystem;

// The transformer's config: the folder's, or, for a file alone, what its tensors tell.
TransformerConfig transformer_config(const ModelFiles& files, const Checkpoint& checkpoint) {
  const fs::path config = files.base / "transformer" / "config.json";
  if (files.transformer.empty() || path_exists(config)) {
    return parse_transformer_config(read_json_file(config), config.string());
  }
  return infer_transformer_config(checkpoint, names_in(checkpoint));
}

// The tokenizer's own template, tried out before any long work.
std::optional<ChatTemplate> load_chat_template(const fs::path& folder) {
  auto chat = ChatTemplate::load(folder);
  if (chat) chat->render("a prompt");
  return chat;
}

Tokenizer load_tokenizer(const fs::path& folder) {
  Tokenizer tokenizer = Tokenizer::load(folder / "tokenizer.json");
  check_tokenizer_config(folder, tokenizer);
  return tokenizer;
}

class Model final : public DiffusionModel {
 public:
  Model(const ModelFiles& files, const LoadOptions& options)
      : options_(options),
        tokenizer_(load_tokenizer(files.base / "tokenizer")),
        chat_(load_chat_template(files.base / "tokenizer")),
        text_config_(qwen3::parse_config(read_json_file(config_of(files, "text_encoder")),
                                         config_of(files, "text_encoder").string())),
        vae_config_(autoencoder_kl::parse_config(read_json_file(config_of(files, "vae")),
                                                 config_of(files, "vae").string())),
        text_file_(Checkpoint::open(files.base / "text_encoder")),
        transformer_file_(Checkpoint::open(files.transformer.empty() ? files.base / "transformer"
                                                                     : files.transformer)),
        vae_file_(Checkpoint::open(files.base / "vae")),
        config_(transformer_config(files, transformer_file_)),
        text_(load_text()),
        transformer_(load_transformer()),
        vae_(load_vae()) {
    check_configs(files.base);
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

  const LoadReport& load_report() const override { return report_; }

  ModelMemory plan(const Shape& latents, int64_t rows,
                   std::span<const std::string> prompts) override {
    ModelMemory memory;
    for (const Component* part : {&text_, &transformer_, &vae_}) part->add_weights(memory);
    const auto consider = [&](const Program& program) {
      const MemoryUse& use = program.memory();
      if (use.working() > memory.arena + memory.workspace + memory.borders) {
        memory.arena = use.arena;
        memory.workspace = use.workspace;
        memory.borders = use.borders;
      }
    };
    TransformerShape shape{rows, latents[2], latents[3], 0, false};
    for (const std::string& prompt : prompts) {
      const int64_t tokens = padded_length(static_cast<int64_t>(tokenize(prompt).size()));
      shape.ragged = shape.ragged || (shape.caption_tokens != 0 && shape.caption_tokens != tokens);
      shape.caption_tokens = std::max(shape.caption_tokens, tokens);
      consider(text_program(tokens));
    }
    consider(transformer_program(shape));
    consider(vae_program({1, latents[1], latents[2], latents[3]}));
    arena_->expect(memory.arena + memory.workspace);
    return memory;
  }

  Condition encode(const std::string& prompt) override {
    const std::vector<int32_t> ids = tokenize(prompt);
    const auto count = static_cast<int64_t>(ids.size());
    const int64_t tokens = padded_length(count);
    const auto results =
        text_program(tokens).run(qwen3::text_inputs(text_config_, tokens, {&ids, 1}));
    const Tensor states = results.at("states").reshape({tokens, text_config_.hidden_size});
    return {states.rows(0, count)};
  }

  Tensor velocity(const Tensor& latents, std::span<const float> sigmas,
                  std::span<const Condition> conditions) override {
    const TransformerShape shape = prepare_inputs(latents, sigmas, conditions);
    Program& program = transformer_program(shape);
    program.set_observer(observer_);
    Tensor sample = program.run(inputs_).at("sample");
    for (float& v : sample.mutable_as<float>()) v = -v;  // the model predicts data minus noise
    return sample;
  }

  NamedTensors block_outputs(const Tensor& latents, std::span<const float> sigmas,
                             std::span<const Condition> conditions) override {
    const TransformerShape shape = prepare_inputs(latents, sigmas, conditions);
    Program& program = transformer_program(shape, /*tap_blocks=*/true);
    const auto results = program.run(inputs_);
    NamedTensors blocks;
    for (const Region& region : program.graph().regions()) {
      blocks.emplace_back(region.name, as_float(results.at(region.name)));
    }
    return blocks;
  }

  Tensor decode(const Tensor& latents) override {
    return vae_program(latents.shape()).run({{"latents", latents}}).at("image");
  }

  void set_lora_strengths(std::span<const float> strengths) override {
    loras_.check_strengths(strengths);
    strengths_.assign(strengths.begin(), strengths.end());
  }

  int programs_built() const override {
    return text_.built() + transformer_.built() + vae_.built();
  }

  QuantizeRecipe default_recipe(const Format& format) const override {
    return zimage::default_recipe(format);
  }

  std::vector<LinearInfo> linears() const override {
    const std::shared_ptr<Graph> graph = smallest_graph();
    std::vector<LinearInfo> found;
    std::map<int, int> groups;  // by input
    const auto report = quantize_linears(*graph, zimage::default_recipe(formats::fp8)).report;
    for (const auto& linear : report.converted) found.push_back({linear.weight, linear.shape, -1});
    for (const Node& node : graph->nodes()) {
      if (node.op != Op::kLinear) continue;
      for (LinearInfo& info : found) {
        if (info.weight != graph->values()[node.inputs[1]].name) continue;
        info.group = groups.emplace(node.inputs[0], static_cast<int>(groups.size())).first->second;
      }
    }
    return found;
  }

  void set_recipe(const std::optional<QuantizeRecipe>& recipe,
                  const WeightQuantizer& quantizer) override {
    options_.recipe = recipe;
    quantizer_ = quantizer;
    options_.format.reset();
    transformer_ = load_transformer();
  }

  void observe_linears(LinearObserver observer) override {
    HT_ASSERT(!options_.compile);
    observer_ = std::move(observer);
  }

  std::string hash() const override {
    const Checkpoint* files[] = {&text_file_, &transformer_file_, &vae_file_};
    return model_hash(files);
  }

 private:
  static fs::path config_of(const ModelFiles& files, const char* part) {
    return files.base / part / "config.json";
  }

  // Positions and captions are the same for all steps of a picture, and take longer to prepare
  // than a GPU takes for a small model.
  TransformerShape prepare_inputs(const Tensor& latents, std::span<const float> sigmas,
                                  std::span<const Condition> conditions) {
    std::vector<Tensor> captions;
    for (const Condition& condition : conditions) captions.push_back(condition.states);
    std::vector<float> time;
    for (const float sigma : sigmas) time.push_back(1.0f - sigma);
    const TransformerShape shape = shape_for(latents, captions);
    const auto same = [](const Tensor& a, const Tensor& b) {
      return a.address() == b.address() && a.shape() == b.shape();
    };
    const bool known = inputs_.contains("latents") &&
                       inputs_.at("latents").shape() == latents.shape() &&
                       std::equal(captions.begin(), captions.end(), input_captions_.begin(),
                                  input_captions_.end(), same);
    if (!known) {
      inputs_ = transformer_inputs(config_, shape, latents, time, captions);
      input_captions_ = captions;  // held, so that their addresses are theirs alone
    }
    inputs_["latents"] = latents;
    std::copy(time.begin(), time.end(), inputs_.at("time").mutable_as<float>().begin());
    if (!loras_.empty()) inputs_[kLoraStrength] = loras_.strengths(shape.batch, strengths_);
    return shape;
  }
  static Tensor as_float(const Tensor& x) {
    if (x.dtype() == DType::kF32) return x;
    Tensor y = Tensor::empty(DType::kF32, x.shape());
    for (int64_t i = 0; i < x.numel(); ++i) y.mutable_as<float>()[i] = to_float(x.as<bf16>()[i]);
    return y;
  }

  std::vector<int32_t> tokenize(const std::string& prompt) const {
    constexpr size_t kMostBytes = 1 << 16;  // many times what any prompt of so many tokens takes
    if (prompt.size() > kMostBytes) {
      throw Error(ErrorCode::kUsage, "prompt", "{} bytes are more than the {} that are looked at",
                  prompt.size(), kMostBytes);
    }
    if (!is_valid_utf8(prompt)) {
      throw Error(ErrorCode::kUsage, "prompt", "'{}' is not UTF-8", printable(prompt));
    }
    std::vector<int32_t> ids =
        tokenizer_.encode(chat_ ? chat_->render(prompt) : chat_prompt(prompt));
    if (static_cast<int64_t>(ids.size()) > kMaxPromptTokens) {
      throw Error(ErrorCode::kUsage, "prompt",
                  "{} tokens are more than the {} that the model reads", ids.size(),
                  kMaxPromptTokens);
    }
    return ids;
  }

  Program& text_program(int64_t tokens) {
    return text_.program(std::to_string(tokens), [&] {
      return text_.compiled(
          *qwen3::build_text_encoder(text_config_, 1, tokens, {options_.activations, false}));
    });
  }
  Program& transformer_program(const TransformerShape& shape, bool tap_blocks = false) {
    const std::string key =
        fmt::format("{}x{}x{}+{}{}{}", shape.batch, shape.height, shape.width, shape.caption_tokens,
                    shape.ragged ? " ragged" : "", tap_blocks ? " tapped" : "");
    return transformer_.program(
        key, [&] { return transformer_.compiled(*transformer_graph(shape, tap_blocks)); });
  }
  Program& vae_program(const Shape& s) {
    return vae_.program(s.str(), [&] {
      return vae_.compiled(
          *autoencoder_kl::build_decoder(vae_config_, s[0], s[2], s[3], {options_.activations}));
    });
  }

  std::shared_ptr<Graph> transformer_graph(const TransformerShape& shape,
                                           bool tap_blocks = false) const {
    return build_transformer(config_, shape, {options_.activations, tap_blocks});
  }

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

  Component component(Weights weights, const std::shared_ptr<Graph>& graph,
                      CompileOptions compile = {}) const {
    compile.optimize = options_.compile;
    return {std::move(weights), {&graph, 1}, std::move(compile), options_, arena_};
  }

  Component load_text() const {
    const std::shared_ptr<Graph> graph = qwen3::build_text_encoder(text_config_, 1, 1, {});
    // Saved with or without a language model around it.
    const bool bare = text_file_.find("embed_tokens.weight") != nullptr;
    const std::string prefix = bare ? "" : "model.";
    // The states before the last layer are what is used.
    const std::string last = fmt::format("{}layers.{}.", prefix, text_config_.layers - 1);
    WeightNames names;
    names.stored_as = [&](const std::string& name) {
      return StoredAs{prefix + name.substr(std::string_view("model.").size())};
    };
    names.known_unused = [&](std::string_view name) {
      return name.starts_with(last) || name == prefix + "norm.weight" || name == "lm_head.weight";
    };
    return component(checked(load_weights(text_file_, {&graph, 1}, names), text_file_), graph);
  }

  Component load_transformer() {
    const std::shared_ptr<Graph> graph = smallest_graph();
    Weights weights =
        checked(load_weights(transformer_file_, {&graph, 1}, names_in(transformer_file_),
                             &input_scales_, &full_precision_),
                transformer_file_);
    choose_formats(*graph, weights);
    load_loras(*graph);
    weights.merge(loras_.weights());
    // Adapters beside linears, in the chosen formats.
    CompileOptions compile;
    if (!loras_.empty()) compile.lora = loras_.sites();
    compile.recipe = recipe_;
    return component(std::move(weights), transformer_graph(smallest_shape()), std::move(compile));
  }

  TransformerShape smallest_shape() const {
    return {1, config_.patch_size, config_.patch_size, kSequenceMultiple};
  }
  std::shared_ptr<Graph> smallest_graph() const {
    return build_transformer(config_, smallest_shape(), {});
  }

  // The recipe of this run, and the weights that it converts.
  void choose_formats(const Graph& graph, Weights& weights) {
    auto stored = quantized_formats(weights);
    for (const std::string& name : full_precision_) {
      if (stored.contains(name)) stored.at(name).activations = false;
    }
    report_ = {};
    recipe_.reset();
    // What a quantized file keeps in high precision stays so, whatever format is asked for.
    if (!options_.format && !options_.recipe && stored.empty()) return;
    if (options_.automatic && !stored.empty()) options_.activations = DType::kBF16;
    recipe_ = options_.recipe
                  ? *options_.recipe
                  : zimage::default_recipe(stored.empty() ? *options_.format : formats::bf16);
    recipe_->stored = stored;
    recipe_->input_scales.insert(input_scales_.begin(), input_scales_.end());
    if (!options_.recipe) recipe_->activations = options_.quantize_activations;
    report_.quantized = quantize_linears(graph, *recipe_).report;
    report_.stored = !stored.empty();
    report_.calibrated = !recipe_->input_scales.empty();
    for (const auto& linear : report_.quantized.converted) {
      ++report_.formats[std::string(linear.format.name)];
    }
    if (quantizer_) {
      for (const auto& linear : report_.quantized.converted) {
        Weight& weight = weights.at(linear.weight);
        const auto* tensor = std::get_if<Tensor>(&weight);
        if (tensor != nullptr) weight = quantizer_(linear.weight, *tensor, linear.format);
      }
      return;
    }
    quantize_weights(weights, report_.quantized, cpu_kernels(), host_stream());
  }

  void load_loras(const Graph& graph) {
    const LoraTargets targets = lora_targets(graph);
    strengths_.clear();
    std::vector<LoraAdapter> adapters;
    for (const LoraChoice& choice : options_.loras) {
      adapters.push_back(LoraAdapter::load(choice.file, targets));
      strengths_.push_back(choice.strength);
      report_.loras.push_back(adapters.back().report());
    }
    loras_ = LoraStack(std::move(adapters));
    loras_.check_strengths(strengths_);
  }

  Component load_vae() const {
    const int64_t size = vae_config_.scale();
    const std::shared_ptr<Graph> graphs[] = {
        autoencoder_kl::build_decoder(vae_config_, 1, 1, 1, {}),
        autoencoder_kl::build_encoder(vae_config_, 1, size, size, {})};
    return component(checked(load_weights(vae_file_, graphs, {}), vae_file_), graphs[0]);
  }

  Weights checked(Weights weights, const Checkpoint& file) const {
    check_finite(weights, file.path().string(), cpu_kernels(), host_stream());
    return weights;
  }
  // Weights are looked at and converted on their way, on the CPU.
  Stream host_stream() const { return {options_.stream.threads}; }

  LoadOptions options_;
  LoadReport report_;
  std::optional<QuantizeRecipe> recipe_;  // where some linear is quantized
  LinearObserver observer_;
  // What the file says about inputs, by weight: calibrated scales; those that are not rounded.
  std::map<std::string, float> input_scales_;
  std::set<std::string> full_precision_;
  WeightQuantizer quantizer_;
  LoraStack loras_{{}};
  std::vector<float> strengths_;
  // Text encoder, transformer and VAE run one after the other.
  std::shared_ptr<Arena> arena_ = std::make_shared<Arena>();
  Tokenizer tokenizer_;
  std::optional<ChatTemplate> chat_;  // without one, chat_prompt
  qwen3::Config text_config_;
  autoencoder_kl::Config vae_config_;
  Checkpoint text_file_, transformer_file_, vae_file_;
  TransformerConfig config_;
  Component text_, transformer_, vae_;
  std::map<std::string, Tensor> inputs_;  // of the transformer's last run
  std::vector<Tensor> input_captions_;
};

}  // namespace

std::string chat_prompt(const std::string& prompt) {
  return "<|im_start|>user\n" + prompt + "<|im_end|>\n<|im_start|>assistant\n";
}

bool is_zimage_file(const fs::path& file) {
  const Checkpoint checkpoint = Checkpoint::open(file);
  const StoredAs token = names_in(checkpoint).stored_as("cap_pad_token");
  return checkpoint.find(token.name) != nullptr;
}

std::unique_ptr<DiffusionModel> load_model(const ModelFiles& files, const LoadOptions& options) {
  check_model_index(files.base);
  return std::make_unique<Model>(files, options);
}

}  // namespace halftone::zimage
