// What the files beside a vocabulary say: the class of a tokenizer, and the tokens it adds.
#pragma once

#include <map>

#include "halftone/io/tokenizer_parts.h"

namespace halftone {

// The classes whose steps are known here.
inline constexpr const char* kClipTokenizer = "CLIPTokenizer";
inline constexpr const char* kT5Tokenizer = "T5Tokenizer";

// The files of a tokenizer's folder, by name.
struct TokenizerFiles {
  std::filesystem::path folder;  // for errors
  std::map<std::string, std::string> content;

  bool has(const std::string& name) const { return content.contains(name); }
  std::string where(const std::string& name) const { return (folder / name).string(); }
  nlohmann::json json(const std::string& name) const;
};

// What load_tokenizer does with a folder.
Tokenizer make_tokenizer(const TokenizerFiles& files);

// tokenizer_config.json, with special_tokens_map.json where that counts.
struct TokenizerSettings {
  std::string where;                        // names tokenizer_config.json in errors
  std::string class_name;                   // without the Fast that older versions of it end with
  std::vector<AddedToken> added;            // added_tokens_decoder
  std::map<std::string, AddedToken> named;  // eos_token and so on
  std::vector<AddedToken> more;             // additional_special_tokens
  std::optional<int64_t> max_length;
  int64_t extra_ids = 100;

  // A token that a class has where no file names it.
  void name_default(const char* name, const std::string& content);
};
TokenizerSettings read_tokenizer_settings(const TokenizerFiles& files);

// The tokens with flags: those of the config, or else those of tokenizer.json, which may be
// missing.
void add_listed_tokens(const TokenizerSettings& settings, const ConfigReader* file,
                       const std::string& where, Tokenizer::State& state);
// The others that the settings name; ids are those of the vocabulary.
void add_named_tokens(const TokenizerSettings& settings, Tokenizer::State& state);
// The id of one of them.
std::optional<int32_t> named_id(const TokenizerSettings& settings, const char* name,
                                const Tokenizer::State& state);

}  // namespace halftone
