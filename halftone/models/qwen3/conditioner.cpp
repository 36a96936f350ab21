#include "halftone/models/qwen3/conditioner.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "halftone/base/error.h"
#include "halftone/io/json.h"
#include "halftone/models/folder.h"
#include "halftone/models/qwen3/names.h"

namespace halftone::qwen3 {
namespace {

namespace fs = std::filesystem;

// The tokenizer's own template, tried out before any long work.
std::optional<ChatTemplate> load_chat_template(const fs::path& folder, bool thinking) {
  auto chat = ChatTemplate::load(folder);
  if (chat) chat->render("a prompt", thinking);
  return chat;
}

Tokenizer load_tokenizer(const fs::path& folder) {
  Tokenizer tokenizer = Tokenizer::load(folder / "tokenizer.json");
  check_tokenizer_config(folder, tokenizer);
  return tokenizer;
}

Config load_config(const fs::path& file) {
  return parse_config(read_json_file(file), file.string());
}

}  // namespace

Qwen3Conditioner::Qwen3Conditioner(const ModelFiles& files, ConditionerOptions options)
    : options_(std::move(options)),
      tokenizer_(load_tokenizer(files.of("tokenizer"))),
      chat_(load_chat_template(files.of("tokenizer"), options_.thinking)),
      config_(load_config(files.of("text_encoder") / "config.json")) {
  if (tokenizer_.vocab_size() > config_.vocab_size) {
    throw Error(ErrorCode::kInvalidInput, files.base.string(),
                "components do not fit: a tokenizer of {} tokens for a text encoder of {}",
                tokenizer_.vocab_size(), config_.vocab_size);
  }
  for (const int64_t layer : options_.states_after) {
    if (layer < config_.layers) continue;
    throw Error(ErrorCode::kInvalidInput, (files.of("text_encoder") / "config.json").string(),
                "has {} layers, and the states after layer {} are needed", config_.layers, layer);
  }
  if (!options_.padded) return;
  pad_ = tokenizer_.find(options_.pad_token);
  if (!pad_) {
    throw Error(ErrorCode::kInvalidInput, (files.of("tokenizer") / "tokenizer.json").string(),
                "has no token '{}', which fills prompts up", options_.pad_token);
  }
}

int64_t Qwen3Conditioner::features() const {
  const auto chosen = static_cast<int64_t>(std::max<size_t>(options_.states_after.size(), 1));
  return config_.hidden_size * chosen;
}

PromptTokens Qwen3Conditioner::tokenize(const std::string& prompt) const {
  check_prompt_text(prompt);
  std::vector<int32_t> ids = tokenizer_.encode(chat_ ? chat_->render(prompt, options_.thinking)
                                                     : options_.chat_prompt(prompt));
  if (static_cast<int64_t>(ids.size()) > options_.most_tokens) {
    throw Error(ErrorCode::kUsage, "prompt", "{} tokens are more than the {} that the model reads",
                ids.size(), options_.most_tokens);
  }
  return {std::move(ids)};
}

int64_t Qwen3Conditioner::text_tokens(const PromptTokens& prompt) const {
  return options_.padded ? options_.most_tokens : static_cast<int64_t>(prompt[0].size());
}

int64_t Qwen3Conditioner::tokens(size_t, const PromptTokens& prompt) const {
  const int64_t count = text_tokens(prompt), multiple = options_.multiple;
  return options_.padded ? count : (count + multiple - 1) / multiple * multiple;
}

Options Qwen3Conditioner::graph_options(DType activations) const {
  Options options;
  options.activations = activations;
  options.states_after = options_.states_after;
  options.lengths = options_.padded;
  return options;
}

std::shared_ptr<Graph> Qwen3Conditioner::build(size_t, int64_t tokens,
                                               const BuildOptions& options) const {
  return build_text_encoder(config_, 1, tokens, graph_options(options.activations));
}

NamedTensors Qwen3Conditioner::inputs(size_t, const PromptTokens& prompt) const {
  return text_inputs(config_, tokens(0, prompt), {&prompt[0], 1}, pad_);
}

WeightNames Qwen3Conditioner::names(size_t, const Checkpoint& checkpoint) const {
  return names_in(checkpoint, config_, graph_options(DType::kF32));
}

QuantizeRecipe Qwen3Conditioner::recipe(size_t, const Format& format) const {
  return layers_recipe(format);
}

Condition Qwen3Conditioner::condition(const PromptTokens& prompt,
                                      std::span<const NamedTensors> results) const {
  const Tensor& states = results[0].at("states");
  return {{"text", states.reshape({states.shape()[1], features()}).rows(0, text_tokens(prompt))}};
}

}  // namespace halftone::qwen3
