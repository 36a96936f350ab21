// Byte-level BPE from a tokenizer.json: text to token ids, equal to the `tokenizers` package.
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
  // A tokenizer.json whose parts are not the ones known here (BPE, byte level, NFC, a regular
  // expression that splits) is an Error that names the part.
  static Tokenizer load(const std::filesystem::path& path);
  static Tokenizer parse(const nlohmann::json& json, const std::string& where);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // Added tokens such as <|im_end|> are recognized inside the text. Text that is not UTF-8 is an
  // Error.
  std::vector<int32_t> encode(std::string_view text) const;

  std::optional<int32_t> find(std::string_view token) const;  // an added token's id
  int32_t vocab_size() const;                                 // largest id + 1

 private:
  struct State;
  explicit Tokenizer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace halftone
