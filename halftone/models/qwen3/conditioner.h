// Prompts through a chat template, a tokenizer and Qwen3, for the families that use it.
#pragma once

#include <optional>

#include "halftone/io/chat_template.h"
#include "halftone/io/tokenizer.h"
#include "halftone/models/family.h"
#include "halftone/models/qwen3/text_encoder.h"

namespace halftone::qwen3 {

// What tells one family's use of it from another's.
struct ConditionerOptions {
  // What is read where the tokenizer has no template of its own.
  std::string (*chat_prompt)(const std::string& prompt) = nullptr;
  bool thinking = true;               // as ChatTemplate::render has it
  int64_t most_tokens = 512;          // of a prompt, with its template
  int64_t multiple = 32;              // programs are built for multiples of this many tokens
  std::vector<int64_t> states_after;  // as qwen3::Options has it
  // Prompts become this many tokens, and what fills them up is part of the Condition. Otherwise it
  // holds the prompt's own tokens alone.
  bool padded = false;
  const char* pad_token = "<|endoftext|>";
};

class Qwen3Conditioner final : public Conditioner {
 public:
  Qwen3Conditioner(const ModelFiles& files, ConditionerOptions options);

  std::vector<std::string> folders() const override { return {"text_encoder"}; }
  int64_t features() const override;
  PromptTokens tokenize(const std::string& prompt) const override;
  int64_t text_tokens(const PromptTokens& prompt) const override;
  int64_t tokens(size_t index, const PromptTokens& prompt) const override;
  std::shared_ptr<Graph> build(size_t index, int64_t tokens,
                               const BuildOptions& options) const override;
  NamedTensors inputs(size_t index, const PromptTokens& prompt) const override;
  WeightNames names(size_t index, const Checkpoint& checkpoint) const override;
  QuantizeRecipe recipe(size_t index, const Format& format) const override;
  Condition condition(const PromptTokens& prompt,
                      std::span<const NamedTensors> results) const override;

 private:
  Options graph_options(DType activations) const;

  ConditionerOptions options_;
  Tokenizer tokenizer_;
  std::optional<ChatTemplate> chat_;
  Config config_;
  std::optional<int32_t> pad_;
};

}  // namespace halftone::qwen3
