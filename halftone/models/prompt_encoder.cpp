#include "halftone/models/prompt_encoder.h"

#include "halftone/base/error.h"
#include "halftone/base/text.h"

namespace halftone {

PromptTokenizer::PromptTokenizer(const std::filesystem::path& folder, int64_t tokens,
                                 int64_t vocabulary)
    : tokenizer_(load_tokenizer(folder)), tokens_(tokens) {
  if (tokenizer_.vocab_size() > vocabulary) {
    throw Error(ErrorCode::kInvalidInput, folder.string(),
                "does not fit: a tokenizer of {} tokens for a text encoder of {}",
                tokenizer_.vocab_size(), vocabulary);
  }
  if (!tokenizer_.pad()) {
    throw Error(ErrorCode::kInvalidInput, folder.string(), "names no token that fills prompts up");
  }
}

std::vector<int32_t> PromptTokenizer::encode(const std::string& prompt) const {
  return tokenizer_.encode(prompt, static_cast<size_t>(tokens_));
}

int64_t PromptTokenizer::cut(const std::string& prompt) const {
  return std::max<int64_t>(0, static_cast<int64_t>(tokenizer_.encode(prompt).size()) - tokens_);
}

std::vector<std::string> JoinedConditioner::folders() const {
  std::vector<std::string> folders;
  for (const auto& encoder : parts_.encoders) folders.push_back(encoder->folder());
  return folders;
}

PromptTokens JoinedConditioner::tokenize(const std::string& prompt) const {
  check_prompt_text(prompt);
  const PromptEncoder& longest = *parts_.encoders[parts_.longest];
  if (const int64_t cut = longest.cut(prompt); cut > 0) {
    throw Error(ErrorCode::kUsage, "prompt", "{} tokens are more than the {} that the model reads",
                longest.tokens() + cut, longest.tokens());
  }
  PromptTokens ids;
  for (const auto& encoder : parts_.encoders) ids.push_back(encoder->tokenize(prompt));
  return ids;
}

std::string JoinedConditioner::note(const std::string& prompt) const {
  std::string note;
  for (const auto& encoder : parts_.encoders) {
    const int64_t cut = encoder->cut(prompt);
    if (cut == 0) continue;
    note += fmt::format("{}{} reads the first {} of a prompt's {} tokens", note.empty() ? "" : "; ",
                        encoder->folder(), encoder->tokens(), encoder->tokens() + cut);
  }
  return note;
}

std::shared_ptr<Graph> JoinedConditioner::build(size_t index, int64_t tokens,
                                                const BuildOptions& options) const {
  // One token is asked for where only the weights matter; every prompt has as many as any.
  (void)tokens;
  return parts_.encoders[index]->build(options);
}

NamedTensors JoinedConditioner::inputs_of_rows(size_t index,
                                               std::span<const PromptTokens> prompts) const {
  std::vector<std::vector<int32_t>> own;
  for (const PromptTokens& prompt : prompts) own.push_back(prompt[index]);
  return parts_.encoders[index]->inputs_of_rows(own);
}

AdaptedModel::Encoder JoinedConditioner::adapted(size_t index) const {
  const PromptEncoder& encoder = *parts_.encoders[index];
  AdaptedModel::Encoder adapted = Conditioner::adapted(index);
  adapted.comfy = encoder.comfy_name();
  adapted.targets = encoder.lora_targets();
  return adapted;
}

}  // namespace halftone
