// The parts of a tokenizer.json.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "halftone/io/bpe.h"
#include "halftone/io/charsmap.h"
#include "halftone/io/text_splitter.h"
#include "halftone/io/tokenizer_parts.h"
#include "halftone/io/unicode_text.h"
#include "halftone/io/unigram.h"

namespace halftone {
namespace {

using nlohmann::json;
using State = Tokenizer::State;

// ---- models -------------------------------------------------------------------------------------

// Options that change what text becomes; the values here are the only ones that are known.
void check_bpe_options(const ConfigReader& model, const std::string& where) {
  for (const char* option : {"byte_fallback", "fuse_unk"}) {
    if (model.boolean(option, false)) refuse_tokenizer(where, std::string("model.") + option);
  }
  if (!model.text("continuing_subword_prefix", "").empty()) {
    refuse_tokenizer(where, "model.continuing_subword_prefix");
  }
  if (model.number("dropout", 0) != 0) refuse_tokenizer(where, "model.dropout");
}

void read_merges(const ConfigReader& model, const std::string& where, Bpe& bpe) {
  size_t rank = 0;
  for (const auto& merge : model.list("merges")) {
    std::string left, right;
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      left = merge[0].get<std::string>();
      right = merge[1].get<std::string>();
    } else if (merge.is_string()) {  // "left right", as older files have it
      const auto& text = merge.get_ref<const std::string&>();
      const size_t space = text.find(' ');
      left = text.substr(0, space);
      if (space != std::string::npos) right = text.substr(space + 1);
    }
    if (!bpe.add_merge(left, right)) {
      throw Error(ErrorCode::kInvalidInput, where, "merge {} ('{}' '{}') is not of known tokens",
                  rank, printable(left), printable(right));
    }
    ++rank;
  }
}

void read_bpe(const ConfigReader& model, const std::string& where, State& state) {
  check_bpe_options(model, where);
  auto bpe = std::make_unique<Bpe>(model.text("end_of_word_suffix", ""));
  const ConfigReader vocab = model.object("vocab");
  bpe->reserve(vocab.json().size(), model.list("merges").size());
  for (const auto& [token, value] : vocab.json().items()) {
    const int32_t id = read_token_id(value, where, token);
    state.vocab_size = std::max(state.vocab_size, id + 1);
    bpe->add_token(token, id);
  }
  std::optional<std::string> unknown;
  if (model.has("unk_token")) unknown = model.text("unk_token");
  bpe->check_bytes(where, unknown);
  read_merges(model, where, *bpe);
  bpe->ignore_merges(model.boolean("ignore_merges", false));
  state.model = std::move(bpe);
}

void read_unigram(const ConfigReader& model, const std::string& where, State& state) {
  UnigramOptions options;
  options.byte_fallback = model.boolean("byte_fallback", false);
  options.unknown = static_cast<int32_t>(model.integer("unk_id", -1, 0, 1 << 24));
  std::vector<UnigramPiece> pieces;
  const json& vocab = model.list("vocab");
  pieces.reserve(vocab.size());
  for (const auto& piece : vocab) {
    if (!piece.is_array() || piece.size() != 2 || !piece[0].is_string() || !piece[1].is_number()) {
      throw Error(ErrorCode::kInvalidInput, where, "'model.vocab[{}]' is not [piece, score]",
                  pieces.size());
    }
    pieces.push_back({piece[0].get<std::string>(), piece[1].get<double>()});
  }
  state.vocab_size = static_cast<int32_t>(pieces.size());
  state.model = std::make_unique<Unigram>(std::move(pieces), options, where);
}

// ---- normalizers --------------------------------------------------------------------------------

// What a pattern is written as: a regular expression, or text that stands for itself.
std::string read_pattern(const ConfigReader& part) {
  const ConfigReader pattern = part.object("pattern");
  if (!pattern.has("String")) return pattern.text("Regex");
  std::string escaped;
  for (const char c : pattern.text("String")) {
    if ((c & 0x80) == 0 && std::string_view("\\^$.|?*+()[]{}").find(c) != std::string_view::npos) {
      escaped += '\\';
    }
    escaped += c;
  }
  return escaped;
}

std::function<std::string(std::string_view)> read_replace(const ConfigReader& part,
                                                          const std::string& where) {
  constexpr size_t kMostContent = 256;
  const std::string replacement = part.text("content");
  if (replacement.size() > kMostContent) {
    part.fail("content", fmt::format("of {} bytes is too long", replacement.size()));
  }
  const auto splitter =
      std::make_shared<const TextSplitter>(read_pattern(part), where, "normalizer");
  return [splitter, content = replacement](std::string_view text) {
    std::string result;
    splitter->split(text, [&](std::string_view piece, bool matched) {
      result += matched ? std::string_view(content) : piece;
    });
    return result;
  };
}

void read_normalizer_step(const ConfigReader& part, const std::string& where, State& state) {
  const std::string type = part.text("type");
  if (type == "Sequence") {
    for (const ConfigReader& step : part.objects("normalizers")) {
      read_normalizer_step(step, where, state);
    }
  } else if (type == "NFC") {
    state.normalizers.emplace_back(compose_nfc);
  } else if (type == "Lowercase") {
    state.normalizers.emplace_back(lower_case);
  } else if (type == "Replace") {
    state.normalizers.push_back(read_replace(part, where));
  } else if (type == "Strip") {
    const bool left = part.boolean("strip_left"), right = part.boolean("strip_right");
    state.normalizers.emplace_back([left, right](std::string_view text) {
      if (left) text.remove_prefix(leading_space(text));
      if (right) text.remove_suffix(trailing_space(text));
      return std::string(text);
    });
  } else if (type == "Precompiled") {
    const char* name = "precompiled_charsmap";
    const auto table = std::make_shared<const Charsmap>(
        decode_base64(part.text(name), where, std::string("normalizer.") + name), where, name);
    state.normalizers.emplace_back([table](std::string_view text) { return table->apply(text); });
  } else {
    refuse_tokenizer(where, "normalizer " + printable(type));
  }
}

// ---- splitting ----------------------------------------------------------------------------------

enum class Kept { kAll, kMatches, kGaps };

void add_splitter(const std::string& pattern, const std::string& where, Kept kept, State& state) {
  const auto splitter = std::make_shared<const TextSplitter>(pattern, where, "pre_tokenizer");
  state.splitters.emplace_back(
      [splitter, kept](const TextPiece& piece, std::vector<TextPiece>& pieces) {
        splitter->split(piece.text, [&](std::string_view part, bool matched) {
          if (kept != Kept::kAll && matched != (kept == Kept::kMatches)) return;
          pieces.push_back({std::string(part), piece.first && part.data() == piece.text.data()});
        });
      });
}

void read_split(const ConfigReader& part, const std::string& where, State& state) {
  const std::string behavior = part.text("behavior");
  const bool invert = part.boolean("invert", false);
  if (behavior == "Isolated") {
    add_splitter(read_pattern(part), where, Kept::kAll, state);
  } else if (behavior == "Removed") {
    add_splitter(read_pattern(part), where, invert ? Kept::kMatches : Kept::kGaps, state);
  } else {
    refuse_tokenizer(where, "pre_tokenizer Split with " + printable(behavior));
  }
}

// Spaces become a mark, which also stands before the text, and pieces start with it.
void read_metaspace(const ConfigReader& part, const std::string& where, State& state) {
  const std::string mark = part.text("replacement");
  if (mark.empty() || first_character(mark).bytes != mark.size()) {
    part.fail("replacement", "is not one character");
  }
  const std::string scheme = part.text("prepend_scheme", "always");
  const bool always = scheme == "always", first = scheme == "first";
  if (!always && !first && scheme != "never") part.fail("prepend_scheme", "is not known");
  if (!part.boolean("add_prefix_space", true) && (always || first)) {
    refuse_tokenizer(where, "pre_tokenizer Metaspace with prepend_scheme against add_prefix_space");
  }
  const bool split = part.boolean("split", true);
  state.splitters.emplace_back(
      [mark, always, first, split](const TextPiece& piece, std::vector<TextPiece>& pieces) {
        std::string text;
        for (const char c : piece.text) {
          if (c == ' ') {
            text += mark;
          } else {
            text += c;
          }
        }
        if ((always || (first && piece.first)) && !text.starts_with(mark)) text.insert(0, mark);
        bool leads = piece.first;
        for (size_t start = 0; start < text.size(); leads = false) {
          const size_t end = split ? text.find(mark, start + 1) : std::string::npos;
          pieces.push_back({text.substr(start, end - start), leads});
          start = end == std::string::npos ? text.size() : end;
        }
      });
}

// What GPT-2 split by, which ByteLevel does unless told otherwise.
constexpr const char* kByteLevelPattern =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

// Returns whether bytes are what comes out.
bool read_pre_tokenizer_step(const ConfigReader& part, const std::string& where, State& state) {
  const std::string type = part.text("type");
  bool bytes = false;
  if (type == "Sequence") {
    for (const ConfigReader& step : part.objects("pretokenizers")) {
      if (bytes) refuse_tokenizer(where, "pre_tokenizer with a step after ByteLevel");
      bytes = read_pre_tokenizer_step(step, where, state);
    }
  } else if (type == "Split") {
    read_split(part, where, state);
  } else if (type == "WhitespaceSplit") {
    add_splitter("\\s", where, Kept::kGaps, state);
  } else if (type == "Metaspace") {
    read_metaspace(part, where, state);
  } else if (type == "ByteLevel") {
    if (part.boolean("add_prefix_space", true)) {
      refuse_tokenizer(where, "pre_tokenizer ByteLevel with add_prefix_space");
    }
    if (part.boolean("use_regex", true)) {
      add_splitter(kByteLevelPattern, where, Kept::kAll, state);
    }
    bytes = true;
  } else {
    refuse_tokenizer(where, "pre_tokenizer " + printable(type));
  }
  return bytes;
}

// ---- templates ----------------------------------------------------------------------------------

void read_special(const ConfigReader& specials, const std::string& name, const std::string& where,
                  std::vector<int32_t>& ids, int32_t& vocab_size) {
  const ConfigReader special = specials.object(name.c_str());
  for (const auto& id : special.list("ids")) {
    ids.push_back(read_token_id(id, where, name));
    vocab_size = std::max(vocab_size, ids.back() + 1);
  }
}

void read_single(const ConfigReader& part, const std::string& where, State& state) {
  bool text = false;
  for (const ConfigReader& item : part.objects("single")) {
    if (item.has("Sequence")) {
      if (text) refuse_tokenizer(where, "post_processor with a text that comes twice");
      text = true;
    } else {
      read_special(part.object("special_tokens"), item.object("SpecialToken").text("id"), where,
                   text ? state.after : state.before, state.vocab_size);
    }
  }
  if (!text) refuse_tokenizer(where, "post_processor without the text");
}

int32_t read_pair(const ConfigReader& part, const char* name, const std::string& where) {
  const json& pair = part.list(name);
  if (pair.size() != 2 || !pair[0].is_string()) part.fail(name, "is not [token, id]");
  return read_token_id(pair[1], where, pair[0].get<std::string>());
}

void read_template_step(const ConfigReader& part, const std::string& where, State& state) {
  const std::string type = part.text("type");
  if (type == "Sequence") {
    for (const ConfigReader& step : part.objects("processors")) {
      read_template_step(step, where, state);
    }
  } else if (type == "TemplateProcessing") {
    read_single(part, where, state);
  } else if (type == "RobertaProcessing" || type == "BertProcessing") {
    state.before.insert(state.before.begin(), read_pair(part, "cls", where));
    state.after.push_back(read_pair(part, "sep", where));
    for (const int32_t id : {state.before.front(), state.after.back()}) {
      state.vocab_size = std::max(state.vocab_size, id + 1);
    }
  } else if (type != "ByteLevel") {  // which only changes where tokens say they come from
    refuse_tokenizer(where, "post_processor " + printable(type));
  }
}

}  // namespace

void read_token_model(const ConfigReader& file, const std::string& where, State& state) {
  const ConfigReader model = file.object("model");
  const std::string type = model.text("type");
  if (type == "BPE") {
    read_bpe(model, where, state);
  } else if (type == "Unigram") {
    read_unigram(model, where, state);
  } else {
    refuse_tokenizer(where, "model " + printable(type));
  }
}

void read_normalizer(const ConfigReader& file, const std::string& where, State& state) {
  if (file.has("normalizer")) read_normalizer_step(file.object("normalizer"), where, state);
}

void read_pre_tokenizer(const ConfigReader& file, const std::string& where, State& state) {
  const bool bpe = dynamic_cast<const Bpe*>(state.model.get()) != nullptr;
  const bool bytes = file.has("pre_tokenizer") &&
                     read_pre_tokenizer_step(file.object("pre_tokenizer"), where, state);
  if (bytes != bpe) refuse_tokenizer(where, "pre_tokenizer with this model");
}

void read_template(const ConfigReader& file, const std::string& where, State& state) {
  if (file.has("post_processor")) read_template_step(file.object("post_processor"), where, state);
}

void read_added_tokens(const ConfigReader& file, const std::string& where, State& state) {
  if (!file.has("added_tokens")) return;
  for (const ConfigReader& token : file.objects("added_tokens")) {
    AddedToken added = read_added_token(token, where, /*normalized=*/false);
    added.id = read_token_id(token.field("id"), where, added.content);
    state.add_token(std::move(added));
  }
}

}  // namespace halftone
