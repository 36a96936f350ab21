// Text encoders that a family puts together: each with its tokenizer, each reading prompts of one
// length, which are cut and filled up to it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "halftone/io/tokenizer.h"
#include "halftone/models/family.h"

namespace halftone {

class PromptEncoder {
 public:
  virtual ~PromptEncoder() = default;

  virtual const std::string& folder() const = 0;  // of its weights
  virtual int64_t tokens() const = 0;             // of every prompt
  virtual std::vector<int32_t> tokenize(const std::string& prompt) const = 0;
  // Tokens of the prompt that are beyond those, and not read.
  virtual int64_t cut(const std::string& prompt) const = 0;

  virtual std::shared_ptr<Graph> build(const BuildOptions& options) const = 0;
  virtual NamedTensors inputs(const std::vector<int32_t>& ids) const = 0;
  virtual WeightNames names(const Checkpoint& checkpoint) const = 0;
  virtual QuantizeRecipe recipe(const Format& format) const = 0;  // as Conditioner::recipe
  // The same for several prompts, where it is trained; null where it is not.
  virtual std::shared_ptr<Graph> build_rows(int64_t rows, const BuildOptions& options) const {
    (void)rows, (void)options;
    return nullptr;
  }
  virtual NamedTensors inputs_of_rows(std::span<const std::vector<int32_t>> prompts) const {
    (void)prompts;
    return {};
  }
  // What adapters can change, and what files of ComfyUI call the encoder.
  virtual LoraTargets lora_targets() const { return {}; }
  virtual std::string comfy_name() const { return {}; }
};

// What a folder's tokenizer makes of prompts of one length.
class PromptTokenizer {
 public:
  // An Error where there are more tokens than the encoder's vocabulary has, or none that fills up.
  PromptTokenizer(const std::filesystem::path& folder, int64_t tokens, int64_t vocabulary);

  int64_t tokens() const { return tokens_; }
  std::vector<int32_t> encode(const std::string& prompt) const;
  int64_t cut(const std::string& prompt) const;

 private:
  Tokenizer tokenizer_;
  int64_t tokens_;
};

// Conditions of several encoders.
class JoinedConditioner final : public Conditioner {
 public:
  using Results = std::span<const NamedTensors>;
  struct Parts {
    std::vector<std::unique_ptr<PromptEncoder>> encoders;
    int64_t text_tokens = 0, features = 0;
    VectorWidths vectors;
    // From what the encoders gave, in their order.
    std::function<Condition(Results)> join;
    // The encoder that reads the most: what it cannot read is an Error rather than a note.
    size_t longest = 0;
    std::optional<Condition> without_negative = {};
    // The same as `join`, as a part of a graph; empty: encoders are not trained.
    using Values = std::map<std::string, Value>;
    std::function<Values(std::span<const Values>)> join_values = {};
  };
  explicit JoinedConditioner(Parts parts) : parts_(std::move(parts)) {}

  std::vector<std::string> folders() const override;
  int64_t features() const override { return parts_.features; }
  VectorWidths vectors() const override { return parts_.vectors; }
  PromptTokens tokenize(const std::string& prompt) const override;
  std::string note(const std::string& prompt) const override;
  int64_t text_tokens(const PromptTokens&) const override { return parts_.text_tokens; }
  int64_t tokens(size_t index, const PromptTokens&) const override {
    return parts_.encoders[index]->tokens();
  }
  std::shared_ptr<Graph> build(size_t index, int64_t tokens,
                               const BuildOptions& options) const override;
  NamedTensors inputs(size_t index, const PromptTokens& prompt) const override {
    return parts_.encoders[index]->inputs(prompt[index]);
  }
  WeightNames names(size_t index, const Checkpoint& checkpoint) const override {
    return parts_.encoders[index]->names(checkpoint);
  }
  QuantizeRecipe recipe(size_t index, const Format& format) const override {
    return parts_.encoders[index]->recipe(format);
  }
  AdaptedModel::Encoder adapted(size_t index) const override;
  bool trains_together() const override { return parts_.join_values != nullptr; }
  std::shared_ptr<Graph> build_rows(size_t index, int64_t rows,
                                    const BuildOptions& options) const override {
    return parts_.encoders[index]->build_rows(rows, options);
  }
  NamedTensors inputs_of_rows(size_t index, std::span<const PromptTokens> prompts) const override;
  std::map<std::string, Value> joined(
      std::span<const std::map<std::string, Value>> results) const override {
    return parts_.join_values(results);
  }
  Condition condition(const PromptTokens&, Results results) const override {
    return parts_.join(results);
  }
  std::optional<Condition> without_negative() const override { return parts_.without_negative; }

 private:
  Parts parts_;
};

}  // namespace halftone
