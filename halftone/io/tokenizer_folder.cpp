// load_tokenizer: which files of a folder make its tokenizer, and what those beside them add to it.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "halftone/base/files.h"
#include "halftone/io/bpe.h"
#include "halftone/io/charsmap.h"
#include "halftone/io/json.h"
#include "halftone/io/sentencepiece_file.h"
#include "halftone/io/tokenizer_parts.h"
#include "halftone/io/unigram.h"
#include "halftone/tensor/storage.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using State = Tokenizer::State;

// ---- the files beside ---------------------------------------------------------------------------

// tokenizer_config.json, with special_tokens_map.json where that counts.
struct Settings {
  std::string where;                        // names tokenizer_config.json in errors
  std::string class_name;                   // without the Fast that older versions of it end with
  std::vector<AddedToken> added;            // added_tokens_decoder
  std::map<std::string, AddedToken> named;  // eos_token and so on
  std::vector<AddedToken> more;             // additional_special_tokens
  std::optional<int64_t> max_length;
  int64_t extra_ids = 100;
};

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
                       Settings& settings) {
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

void read_added_decoder(const ConfigReader& file, Settings& settings) {
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

void check_settings(const ConfigReader& file, Settings& settings) {
  settings.class_name = file.text("tokenizer_class", "");
  if (settings.class_name.ends_with("Fast")) {
    settings.class_name.resize(settings.class_name.size() - 4);
  }
  const bool clip = settings.class_name == "CLIPTokenizer";
  const bool t5 = settings.class_name == "T5Tokenizer";
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

Settings read_settings(const fs::path& folder) {
  Settings settings;
  const fs::path config = folder / "tokenizer_config.json";
  settings.where = config.string();
  bool tokens_in_config = false;
  if (path_exists(config)) {
    const json content = read_json_file(config);
    const ConfigReader file(content, settings.where);
    check_settings(file, settings);
    read_named_tokens(file, settings.where, /*normalized=*/true, settings);
    tokens_in_config = file.has("added_tokens_decoder");
    if (tokens_in_config) read_added_decoder(file, settings);
  }
  const fs::path special = folder / "special_tokens_map.json";
  // A config that lists its tokens replaces the older file.
  if (!tokens_in_config && path_exists(special)) {
    const json content = read_json_file(special);
    const std::string where = special.string();
    read_named_tokens(ConfigReader(content, where), where, /*normalized=*/false, settings);
  }
  return settings;
}

// The tokens that a class has where no file names them.
void name_default(Settings& settings, const char* name, const char* content) {
  AddedToken token;
  token.content = content;
  settings.named.try_emplace(name, token);
}

// Adds what the settings name; ids are those of the vocabulary.
void add_tokens(const Settings& settings, State& state) {
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

// The id of a token that the settings name.
std::optional<int32_t> named_id(const Settings& settings, const char* name, const State& state) {
  const auto found = settings.named.find(name);
  return found == settings.named.end() ? std::nullopt : state.added.find(found->second.content);
}

// The tokens with flags: those of the config, or else those of tokenizer.json.
void add_listed(const Settings& settings, const ConfigReader* file, const std::string& where,
                State& state) {
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

// ---- CLIP ---------------------------------------------------------------------------------------

constexpr const char* kClipSteps = R"({
  "normalizer": {"type": "Sequence", "normalizers": [
    {"type": "NFC"},
    {"type": "Replace", "pattern": {"Regex": "\\s+"}, "content": " "},
    {"type": "Lowercase"}]},
  "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
    {"type": "Split", "behavior": "Removed", "invert": true, "pattern": {"Regex":
      "<\\|startoftext\\|>|<\\|endoftext\\|>|'s|'t|'re|'ve|'m|'ll|'d|[\\p{L}]+|[\\p{N}]|[^\\s\\p{L}\\p{N}]+"}},
    {"type": "ByteLevel", "add_prefix_space": false}]}})";

void read_merges_file(const fs::path& path, Bpe& bpe) {
  const auto storage = Storage::map_file(path);
  const auto bytes = storage->bytes();
  std::string_view rest(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const std::string where = path.string();
  if (!is_valid_utf8(rest)) throw Error(ErrorCode::kInvalidInput, where, "is not UTF-8");
  for (int line = 1; !rest.empty(); ++line) {
    const size_t end = rest.find('\n');
    std::string_view text = rest.substr(0, end);
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
    if (text.ends_with('\r')) text.remove_suffix(1);
    if (text.starts_with("#version")) continue;
    const size_t space = text.find(' ');
    const bool two =
        space != std::string_view::npos && text.find(' ', space + 1) == std::string_view::npos;
    if (!two ||
        !bpe.add_merge(std::string(text.substr(0, space)), std::string(text.substr(space + 1)))) {
      throw Error(ErrorCode::kInvalidInput, where, "line {} ('{}') is not two tokens of vocab.json",
                  line, printable(text, 60));
    }
  }
}

void read_vocab_files(const fs::path& folder, State& state, const std::string& unknown) {
  const fs::path file = folder / "vocab.json";
  const json vocab = read_json_file(file);
  const std::string where = file.string();
  if (!vocab.is_object()) throw Error(ErrorCode::kInvalidInput, where, "is not a JSON object");
  auto bpe = std::make_unique<Bpe>("</w>");
  bpe->reserve(vocab.size(), vocab.size());
  for (const auto& [token, value] : vocab.items()) {
    const int32_t id = read_token_id(value, where, token);
    state.vocab_size = std::max(state.vocab_size, id + 1);
    bpe->add_token(token, id);
  }
  bpe->check_bytes(where, unknown);
  read_merges_file(folder / "merges.txt", *bpe);
  state.model = std::move(bpe);
  state.where = where;
}

void read_steps(const char* steps, State& state) {
  static const std::string kWhere = "the steps of a tokenizer's class";
  const json content = json::parse(steps);
  const ConfigReader file(content, kWhere);
  read_normalizer(file, kWhere, state);
  read_pre_tokenizer(file, kWhere, state);
}

// The token around texts that has to be there.
int32_t required_id(const Settings& settings, const char* name, const State& state) {
  const auto id = named_id(settings, name, state);
  HT_ASSERT(id.has_value());  // name_default and add_tokens saw to it
  return *id;
}

Tokenizer load_clip(const fs::path& folder, Settings settings) {
  for (const char* name : {"eos_token", "unk_token", "pad_token"}) {
    name_default(settings, name, "<|endoftext|>");
  }
  name_default(settings, "bos_token", "<|startoftext|>");
  auto state = std::make_unique<State>();
  const fs::path whole = folder / "tokenizer.json";
  if (path_exists(whole)) {
    const json content = read_json_file(whole);
    const std::string where = state->where = whole.string();
    const ConfigReader file(content, where);
    file.object("model").must_be("type", "BPE");
    file.object("model").must_be("end_of_word_suffix", "</w>");
    read_token_model(file, where, *state);
    add_listed(settings, &file, where, *state);
    read_template(file, where, *state);
  } else {
    read_vocab_files(folder, *state, settings.named.at("unk_token").content);
    add_listed(settings, nullptr, {}, *state);
  }
  add_tokens(settings, *state);
  if (state->before.empty() && state->after.empty()) {
    state->before = {required_id(settings, "bos_token", *state)};
    state->after = {required_id(settings, "eos_token", *state)};
  }
  state->pad = named_id(settings, "pad_token", *state);
  state->max_length = settings.max_length;
  read_steps(kClipSteps, *state);
  return Tokenizer(std::move(state));
}

// ---- T5 -----------------------------------------------------------------------------------------

constexpr const char* kT5Steps = R"({
  "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
    {"type": "WhitespaceSplit"},
    {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": true}]}})";

void use_charsmap(const std::string& bytes, const std::string& where, State& state) {
  const auto table = std::make_shared<const Charsmap>(bytes, where, "precompiled_charsmap");
  state.normalizers.emplace_back([table](std::string_view text) { return table->apply(text); });
}

// The table of the normalizer, or of the first step of one that has a table.
void use_charsmap_of(const ConfigReader& file, const std::string& where, State& state) {
  if (!file.has("normalizer")) return;
  const ConfigReader normalizer = file.object("normalizer");
  std::vector<ConfigReader> steps;
  if (normalizer.text("type") == "Sequence") {
    steps = normalizer.objects("normalizers");
  } else {
    steps.push_back(normalizer);
  }
  for (const ConfigReader& step : steps) {
    if (step.text("type") != "Precompiled") continue;
    const char* name = "precompiled_charsmap";
    return use_charsmap(decode_base64(step.text(name), where, name), where, state);
  }
}

void check_sentencepiece(const SentencePieceFile& file, const std::string& where) {
  const auto refuse = [&](bool bad, const char* field) {
    if (!bad) return;
    throw Error(ErrorCode::kUnsupported, where, "'{}' is not one that is supported", field);
  };
  refuse(file.model != SentencePieceFile::kUnigram, "trainer_spec.model_type");
  refuse(file.treat_whitespace_as_suffix, "trainer_spec.treat_whitespace_as_suffix");
  refuse(!file.add_dummy_prefix, "normalizer_spec.add_dummy_prefix");
  refuse(!file.remove_extra_whitespaces, "normalizer_spec.remove_extra_whitespaces");
  refuse(!file.escape_whitespaces, "normalizer_spec.escape_whitespaces");
}

void read_spiece(const fs::path& path, Settings& settings, State& state) {
  const std::string where = state.where = path.string();
  const SentencePieceFile file = read_sentencepiece_file(path);
  check_sentencepiece(file, where);
  std::vector<UnigramPiece> pieces;
  pieces.reserve(file.pieces.size() + static_cast<size_t>(settings.extra_ids));
  for (const SentencePiece& piece : file.pieces) {
    pieces.push_back({piece.text, piece.score});
    const bool control = piece.kind == SentencePiece::kControl;
    if (!control && piece.kind != SentencePiece::kUserDefined) continue;
    AddedToken token;
    token.content = piece.text;
    settings.more.push_back(std::move(token));
  }
  for (int64_t i = settings.extra_ids; i-- > 0;) {
    AddedToken token;
    token.content = fmt::format("<extra_id_{}>", i);
    pieces.push_back({token.content, 0});
    settings.more.push_back(std::move(token));
  }
  state.vocab_size = static_cast<int32_t>(pieces.size());
  state.model = std::make_unique<Unigram>(std::move(pieces),
                                          UnigramOptions{file.unk_id, file.byte_fallback}, where);
  if (!file.charsmap.empty()) use_charsmap(file.charsmap, where, state);
}

Tokenizer load_t5(const fs::path& folder, Settings settings, const fs::path& spiece) {
  name_default(settings, "eos_token", "</s>");
  name_default(settings, "unk_token", "<unk>");
  name_default(settings, "pad_token", "<pad>");
  auto state = std::make_unique<State>();
  const fs::path whole = folder / "tokenizer.json";
  if (path_exists(whole)) {
    const json content = read_json_file(whole);
    const std::string where = state->where = whole.string();
    const ConfigReader file(content, where);
    file.object("model").must_be("type", "Unigram");
    read_token_model(file, where, *state);
    add_listed(settings, &file, where, *state);
    read_template(file, where, *state);
    use_charsmap_of(file, where, *state);
  } else {
    read_spiece(spiece, settings, *state);
    add_listed(settings, nullptr, {}, *state);
  }
  add_tokens(settings, *state);
  if (state->before.empty() && state->after.empty()) {
    state->after = {required_id(settings, "eos_token", *state)};
  }
  state->pad = named_id(settings, "pad_token", *state);
  state->max_length = settings.max_length;
  read_steps(kT5Steps, *state);
  return Tokenizer(std::move(state));
}

}  // namespace

Tokenizer load_tokenizer(const fs::path& folder) {
  const Settings settings = read_settings(folder);
  const std::string& name = settings.class_name;
  const bool whole = path_exists(folder / "tokenizer.json");
  const bool lists = path_exists(folder / "vocab.json") && path_exists(folder / "merges.txt");
  fs::path spiece = folder / "spiece.model";
  if (!path_exists(spiece) && path_exists(folder / "tokenizer.model")) {
    spiece = folder / "tokenizer.model";
  }
  const auto missing = [&](const char* files) {
    throw Error(ErrorCode::kNotFound, folder.string(), "has no {}, which a {} is read from", files,
                printable(name.empty() ? "tokenizer" : name));
  };
  const bool guess = name.empty() && !whole;
  if (name == "CLIPTokenizer" || (guess && lists)) {
    if (!whole && !lists) missing("tokenizer.json, and no vocab.json with merges.txt");
    return load_clip(folder, settings);
  }
  if (name == "T5Tokenizer" || (guess && path_exists(spiece))) {
    if (!whole && !path_exists(spiece)) missing("tokenizer.json, and no spiece.model");
    return load_t5(folder, settings, spiece);
  }
  if (!whole) missing("tokenizer.json");
  const fs::path file = folder / "tokenizer.json";
  auto state = parse_tokenizer(read_json_file(file), file.string());
  state->pad = named_id(settings, "pad_token", *state);
  state->max_length = settings.max_length;
  return Tokenizer(std::move(state));
}

}  // namespace halftone
