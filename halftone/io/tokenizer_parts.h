// What a Tokenizer is made of, for the files that read one.
#pragma once

#include <functional>

#include "halftone/io/added_tokens.h"
#include "halftone/io/config_reader.h"
#include "halftone/io/token_model.h"
#include "halftone/io/tokenizer.h"

namespace halftone {

struct TextPiece {
  std::string text;
  bool first;  // starts the whole text
};

struct Tokenizer::State {
  std::vector<std::function<std::string(std::string_view)>> normalizers;
  std::vector<std::function<void(const TextPiece&, std::vector<TextPiece>&)>> splitters;
  std::unique_ptr<TokenModel> model;
  AddedTokens added;
  std::vector<int32_t> before, after;  // what the template puts around a text
  std::optional<int32_t> pad;
  std::optional<int64_t> max_length;
  int32_t vocab_size = 0;
  std::string where;

  void add_token(AddedToken token);
  std::string normalize(std::string_view text) const;
  void encode_plain(std::string_view text, bool first, std::vector<int32_t>& ids) const;
};

// A tokenizer.json by itself.
std::unique_ptr<Tokenizer::State> parse_tokenizer(const nlohmann::json& document,
                                                  const std::string& where);

[[noreturn]] void refuse_tokenizer(const std::string& where, const std::string& part);

// The parts of a tokenizer.json; `where` names it in errors.
void read_token_model(const ConfigReader& file, const std::string& where, Tokenizer::State& state);
void read_normalizer(const ConfigReader& file, const std::string& where, Tokenizer::State& state);
void read_pre_tokenizer(const ConfigReader& file, const std::string& where,
                        Tokenizer::State& state);
void read_template(const ConfigReader& file, const std::string& where, Tokenizer::State& state);
void read_added_tokens(const ConfigReader& file, const std::string& where, Tokenizer::State& state);

}  // namespace halftone
