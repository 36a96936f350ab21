// load_tokenizer: which files of a folder make its tokenizer, and by the steps of which class.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "halftone/base/files.h"
#include "halftone/io/bpe.h"
#include "halftone/io/charsmap.h"
#include "halftone/io/json.h"
#include "halftone/io/sentencepiece_file.h"
#include "halftone/io/tokenizer_settings.h"
#include "halftone/io/unigram.h"
#include "halftone/tensor/storage.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using State = Tokenizer::State;

constexpr const char* kWhole = "tokenizer.json";

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

void read_merges_file(std::string_view rest, const std::string& where, Bpe& bpe) {
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

void read_vocab_files(const TokenizerFiles& files, State& state, const std::string& unknown) {
  const json vocab = files.json("vocab.json");
  const std::string where = files.where("vocab.json");
  if (!vocab.is_object()) throw Error(ErrorCode::kInvalidInput, where, "is not a JSON object");
  auto bpe = std::make_unique<Bpe>("</w>");
  bpe->reserve(vocab.size(), vocab.size());
  for (const auto& [token, value] : vocab.items()) {
    const int32_t id = read_token_id(value, where, token);
    state.vocab_size = std::max(state.vocab_size, id + 1);
    bpe->add_token(token, id);
  }
  bpe->check_bytes(where, unknown);
  read_merges_file(files.content.at("merges.txt"), files.where("merges.txt"), *bpe);
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
int32_t required_id(const TokenizerSettings& settings, const char* name, const State& state) {
  const auto id = named_id(settings, name, state);
  HT_ASSERT(id.has_value());  // name_default and add_tokens saw to it
  return *id;
}

Tokenizer load_clip(const TokenizerFiles& files, TokenizerSettings settings) {
  for (const char* name : {"eos_token", "unk_token", "pad_token"}) {
    settings.name_default(name, "<|endoftext|>");
  }
  settings.name_default("bos_token", "<|startoftext|>");
  auto state = std::make_unique<State>();
  if (files.has(kWhole)) {
    const json content = files.json(kWhole);
    const std::string where = state->where = files.where(kWhole);
    const ConfigReader file(content, where);
    file.object("model").must_be("type", "BPE");
    file.object("model").must_be("end_of_word_suffix", "</w>");
    read_token_model(file, where, *state);
    add_listed_tokens(settings, &file, where, *state);
    read_template(file, where, *state);
  } else {
    read_vocab_files(files, *state, settings.named.at("unk_token").content);
    add_listed_tokens(settings, nullptr, {}, *state);
  }
  add_named_tokens(settings, *state);
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

void read_spiece(const TokenizerFiles& files, const std::string& name, TokenizerSettings& settings,
                 State& state) {
  const std::string where = state.where = files.where(name);
  const SentencePieceFile file = parse_sentencepiece(files.content.at(name), where);
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

Tokenizer load_t5(const TokenizerFiles& files, TokenizerSettings settings,
                  const std::string& spiece) {
  settings.name_default("eos_token", "</s>");
  settings.name_default("unk_token", "<unk>");
  settings.name_default("pad_token", "<pad>");
  auto state = std::make_unique<State>();
  if (files.has(kWhole)) {
    const json content = files.json(kWhole);
    const std::string where = state->where = files.where(kWhole);
    const ConfigReader file(content, where);
    file.object("model").must_be("type", "Unigram");
    read_token_model(file, where, *state);
    add_listed_tokens(settings, &file, where, *state);
    read_template(file, where, *state);
    use_charsmap_of(file, where, *state);
  } else {
    read_spiece(files, spiece, settings, *state);
    add_listed_tokens(settings, nullptr, {}, *state);
  }
  add_named_tokens(settings, *state);
  if (state->before.empty() && state->after.empty()) {
    state->after = {required_id(settings, "eos_token", *state)};
  }
  state->pad = named_id(settings, "pad_token", *state);
  state->max_length = settings.max_length;
  read_steps(kT5Steps, *state);
  return Tokenizer(std::move(state));
}

}  // namespace

nlohmann::json TokenizerFiles::json(const std::string& name) const {
  return parse_json(content.at(name), where(name));
}

Tokenizer make_tokenizer(const TokenizerFiles& files) {
  const TokenizerSettings settings = read_tokenizer_settings(files);
  const std::string& name = settings.class_name;
  const bool whole = files.has(kWhole);
  const bool lists = files.has("vocab.json") && files.has("merges.txt");
  const std::string spiece = files.has("spiece.model") ? "spiece.model" : "tokenizer.model";
  const auto missing = [&](const char* what) {
    throw Error(ErrorCode::kNotFound, files.folder.string(), "has no {}, which a {} is read from",
                what, printable(name.empty() ? "tokenizer" : name));
  };
  const bool guess = name.empty() && !whole;
  if (name == kClipTokenizer || (guess && lists)) {
    if (!whole && !lists) missing("tokenizer.json, and no vocab.json with merges.txt");
    return load_clip(files, settings);
  }
  if (name == kT5Tokenizer || (guess && files.has(spiece))) {
    if (!whole && !files.has(spiece)) missing("tokenizer.json, and no spiece.model");
    return load_t5(files, settings, spiece);
  }
  if (!whole) missing(kWhole);
  auto state = parse_tokenizer(files.json(kWhole), files.where(kWhole));
  state->pad = named_id(settings, "pad_token", *state);
  state->max_length = settings.max_length;
  return Tokenizer(std::move(state));
}

Tokenizer load_tokenizer(const fs::path& folder) {
  TokenizerFiles files{folder, {}};
  const auto read = [&](const char* name) {
    if (!path_exists(folder / name)) return;
    const auto storage = Storage::map_file(folder / name);
    const auto bytes = storage->bytes();
    constexpr size_t kMost = 64 << 20;  // Gemma's files take up to 33 MB
    if (bytes.size() > kMost) {
      throw Error(ErrorCode::kInvalidInput, files.where(name),
                  "{} bytes are too many for a tokenizer", bytes.size());
    }
    files.content[name].assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  };
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json", kWhole}) read(name);
  if (!files.has(kWhole)) {
    for (const char* name : {"vocab.json", "merges.txt", "spiece.model", "tokenizer.model"}) {
      read(name);
    }
  }
  return make_tokenizer(files);
}

}  // namespace halftone
