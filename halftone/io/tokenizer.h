// Text to token ids, equal to the `tokenizers` package: byte-level BPE (Qwen, CLIP) and Unigram
// (T5).
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace halftone {

class Tokenizer {
 public:
  // A tokenizer.json by itself. Parts that are not known here are an Error that names the part.
  static Tokenizer load(const std::filesystem::path& path);
  static Tokenizer parse(const nlohmann::json& json, const std::string& where);

  struct State;
  explicit Tokenizer(std::unique_ptr<State> state);
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // With what the tokenizer's template puts around a text: CLIP's <|startoftext|> and
  // <|endoftext|>, T5's </s>. Added tokens such as <|im_end|> are recognized inside the text. Text
  // that is not UTF-8 is an Error.
  std::vector<int32_t> encode(std::string_view text) const;
  // Exactly so many: a longer text loses its end, but not what the template puts there; a shorter
  // one is filled up with pad().
  std::vector<int32_t> encode(std::string_view text, size_t length) const;

  std::optional<int32_t> find(std::string_view token) const;  // an added token's id
  int32_t vocab_size() const;                                 // largest id + 1
  // As the files beside tokenizer.json say; nothing where they do not.
  std::optional<int32_t> pad() const;
  std::optional<int64_t> max_length() const;

 private:
  std::unique_ptr<State> state_;
};

// The tokenizer of a folder. The class that tokenizer_config.json names says what it is, the files
// what is in it: CLIPTokenizer from tokenizer.json or vocab.json with merges.txt, T5Tokenizer from
// tokenizer.json or spiece.model, each with the steps of that class in `transformers` 5; any other
// class is what its tokenizer.json says. Tokens that special_tokens_map.json and
// tokenizer_config.json add are recognized. A missing file, or a field that asks for something
// else, is an Error that names it.
Tokenizer load_tokenizer(const std::filesystem::path& folder);

}  // namespace halftone
