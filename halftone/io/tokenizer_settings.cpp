#include "halftone/io/tokenizer_settings.h"

#include <nlohmann/json.hpp>

namespace halftone {
namespace {

using nlohmann::json;
using State = Tokenizer::State;

constexpr const char* kNamedTokens[] = {"bos_token", "eos_token", "unk_token", "pad_token",
                                        "sep_token", "cls_token", "mask_token"};

// A token as a string or with flags. `normalized` is what it is where the flags do not say.
AddedToken read_named(const json& value, const ConfigReader& file, const std::string& where,
                      const char* name, bool normalized) {
  if (value.is_object())
    return read_added_token(ConfigReader(value, where, name), where, normalized);
  if (!value.is_string()) file.fail(name, "is not a token");
  AddedToken token;
  token.content = value.get<std::string>();
  return token;
}

void read_named_tokens(const ConfigReader& file, const std::string& where, bool normalized,
                       TokenizerSettings& settings) {
  for (const char* name : kNamedTokens) {
    if (!file.has(name)) continue;
    settings.named[name] = read_named(file.field(name), file, where, name, normalized);
  }
  for (const char* name : {"additional_special_tokens", "extra_special_tokens"}) {
    const json& field = file.field(name);
    if (field.is_null() || field.empty()) continue;
    for (const json& token : file.list(name)) {
      settings.more.push_back(read_named(token, file, where, name, normalized));
    }
  }
}

void read_added_decoder(const ConfigReader& file, TokenizerSettings& settings) {
  const ConfigReader tokens = file.object("added_tokens_decoder");
  for (const auto& [id, value] : tokens.json().items()) {
    constexpr size_t kMostDigits = 8;
    const bool number = !id.empty() && id.size() <= kMostDigits &&
                        id.find_first_not_of("0123456789") == std::string::npos;
    if (!number) tokens.fail(id, "is not the id of a token");
    const ConfigReader token(value, settings.where, "added_tokens_decoder." + id);
    settings.added.push_back(read_added_token(token, settings.where,
                                              /*normalized=*/!token.boolean("special", false)));
    settings.added.back().id = std::stoi(id);
  }
}

void check_settings(const ConfigReader& file, TokenizerSettings& settings) {
  settings.class_name = file.text("tokenizer_class", "");
  if (settings.class_name.ends_with("Fast")) {
    settings.class_name.resize(settings.class_name.size() - 4);
  }
  const bool clip = settings.class_name == kClipTokenizer, t5 = settings.class_name == kT5Tokenizer;
  if (file.field("model_max_length").is_number_integer()) {
    settings.max_length = file.integer("model_max_length", 0, 1, INT32_MAX);
  }
  if (!clip && !t5) return;  // tokenizer.json says the rest
  settings.extra_ids = file.integer("extra_ids", settings.extra_ids, 0, 10000);
  file.must_be("add_prefix_space", clip ? json(false) : json(true));
  file.must_be("do_lower_case", true);
  file.must_be("add_bos_token", clip);
  file.must_be("add_eos_token", true);
  file.must_be("split_special_tokens", false);
  if (t5) file.must_be("unk_id", 2);  // as every T5 has it, and its other files say
  file.must_be("padding_side", "right");
  file.must_be("truncation_side", "right");
  if (file.has("sp_model_kwargs") && !file.field("sp_model_kwargs").empty()) {
    file.fail("sp_model_kwargs", "is not empty, which is not supported");
  }
  // The tokens are read with those of special_tokens_map.json; the rest is about decoding, and
  // about where the files came from.
  file.ignore({"added_tokens_decoder",
               "additional_special_tokens",
               "backend",
               "bos_token",
               "clean_up_tokenization_spaces",
               "cls_token",
               "device_map",
               "eos_token",
               "errors",
               "extra_special_tokens",
               "from_slow",
               "is_local",
               "legacy",
               "local_files_only",
               "mask_token",
               "max_length",
               "model_max_length",
               "model_specific_special_tokens",
               "name_or_path",
               "pad_to_multiple_of",
               "pad_token",
               "pad_token_type_id",
               "processor_class",
               "return_token_type_ids",
               "sep_token",
               "special_tokens_map_file",
               "stride",
               "tokenizer_class",
               "tokenizer_file",
               "truncation_strategy",
               "unk_token",
               "use_fast"});
  file.finish();
}

}  // namespace

TokenizerSettings read_tokenizer_settings(const TokenizerFiles& files) {
  constexpr const char* kConfig = "tokenizer_config.json";
  TokenizerSettings settings;
  settings.where = files.where(kConfig);
  bool tokens_in_config = false;
  if (files.has(kConfig)) {
    const json content = files.json(kConfig);
    const ConfigReader file(content, settings.where);
    check_settings(file, settings);
    const std::string& name = settings.class_name;
    if (files.has("tokenizer.json") && name != kClipTokenizer && name != kT5Tokenizer) {
      // tokenizer.json holds the tokens of these; which one fills texts up, it does not say.
      if (file.field("pad_token").is_string()) {
        settings.name_default("pad_token", file.text("pad_token"));
      }
      return settings;
    }
    read_named_tokens(file, settings.where, /*normalized=*/true, settings);
    tokens_in_config = file.has("added_tokens_decoder");
    if (tokens_in_config) read_added_decoder(file, settings);
  }
  constexpr const char* kSpecial = "special_tokens_map.json";
  // A config that lists its tokens replaces the older file.
  if (!tokens_in_config && files.has(kSpecial)) {
    const json content = files.json(kSpecial);
    const std::string where = files.where(kSpecial);
    read_named_tokens(ConfigReader(content, where), where, /*normalized=*/false, settings);
  }
  return settings;
}

void TokenizerSettings::name_default(const char* name, const std::string& content) {
  AddedToken token;
  token.content = content;
  named.try_emplace(name, token);
}

void add_named_tokens(const TokenizerSettings& settings, State& state) {
  const auto add = [&](AddedToken token, const std::string& field) {
    const auto known = state.added.find(token.content);
    if (known || token.content.empty()) return;
    token.id = state.model->find(token.content);
    if (token.id < 0) {
      throw Error(ErrorCode::kInvalidInput, settings.where,
                  "'{}' has a token '{}' that the vocabulary has not", field,
                  printable(token.content));
    }
    state.add_token(std::move(token));
  };
  for (const auto& [name, token] : settings.named) add(token, name);
  for (const AddedToken& token : settings.more) add(token, "additional_special_tokens");
}

std::optional<int32_t> named_id(const TokenizerSettings& settings, const char* name,
                                const State& state) {
  const auto found = settings.named.find(name);
  return found == settings.named.end() ? std::nullopt : state.added.find(found->second.content);
}

void add_listed_tokens(const TokenizerSettings& settings, const ConfigReader* file,
                       const std::string& where, State& state) {
  for (const AddedToken& token : settings.added) {
    const int32_t id = state.model->find(token.content);
    if (id != token.id) {
      throw Error(ErrorCode::kInvalidInput, settings.where,
                  "'added_tokens_decoder' has '{}' as {}, which the vocabulary has {}",
                  printable(token.content), token.id,
                  id < 0 ? std::string("not") : fmt::format("as {}", id));
    }
    state.add_token(token);
  }
  if (settings.added.empty() && file != nullptr) read_added_tokens(*file, where, state);
}

}  // namespace halftone
