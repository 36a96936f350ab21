#include "halftone/io/tokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <queue>
#include <unordered_map>

#include "halftone/base/error.h"
#include "halftone/io/config_reader.h"
#include "halftone/io/json.h"

namespace halftone {
namespace {

using nlohmann::json;

// ---- the byte-level alphabet --------------------------------------------------------------------

// Bytes that are printable stand for themselves; the others for characters from U+0100 on, in
// order. A token's text in the file is written in this alphabet.
class ByteAlphabet {
 public:
  ByteAlphabet() {
    char32_t next = 256;
    for (int byte = 0; byte < 256; ++byte) {
      const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) ||
                             (byte >= 0xAE && byte <= 0xFF);
      byte_of_[printable ? static_cast<char32_t>(byte) : next++] = static_cast<char>(byte);
    }
  }

  // The bytes that a token's text stands for; nothing if it is not written in the alphabet.
  std::optional<std::string> decode(std::string_view text) const {
    std::string bytes;
    while (!text.empty()) {
      utf8proc_int32_t character = 0;
      const auto length = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                           static_cast<utf8proc_ssize_t>(text.size()), &character);
      if (length <= 0) return std::nullopt;
      const auto found = byte_of_.find(static_cast<char32_t>(character));
      if (found == byte_of_.end()) return std::nullopt;
      bytes += found->second;
      text.remove_prefix(static_cast<size_t>(length));
    }
    return bytes;
  }

 private:
  std::unordered_map<char32_t, char> byte_of_;
};

// ---- splitting by a regular expression ----------------------------------------------------------

class Splitter {
 public:
  Splitter(const std::string& pattern, std::string where) : where_(std::move(where)) {
    int error = 0;
    PCRE2_SIZE offset = 0;
    code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                              PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &offset,
                              nullptr));
    if (!code_) {
      throw Error(ErrorCode::kInvalidInput, where_, "pre_tokenizer: bad regular expression at {}",
                  offset);
    }
    pcre2_jit_compile(code_.get(), PCRE2_JIT_COMPLETE);  // faster where it is possible
  }

  // Calls piece(text) for every match and for what lies between matches.
  template <class Fn>
  void split(std::string_view text, const Fn& piece) const {
    // Of this call alone: threads share a tokenizer.
    const std::unique_ptr<pcre2_match_data, FreeMatch> match(
        pcre2_match_data_create_from_pattern(code_.get(), nullptr));
    if (!match) throw std::bad_alloc();
    size_t position = 0, start = 0;
    while (position < text.size()) {
      const int count =
          pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), position,
                      PCRE2_NO_UTF_CHECK, match.get(), nullptr);
      if (count == PCRE2_ERROR_NOMATCH) break;
      if (count < 0) {  // a pattern that backtracks without end
        throw Error(ErrorCode::kInvalidInput, where_,
                    "pre_tokenizer: the regular expression gives up on this text (error {})",
                    count);
      }
      const PCRE2_SIZE* range = pcre2_get_ovector_pointer(match.get());
      if (range[1] == range[0]) {  // an empty match would not advance
        position = next_character(text, range[1]);
        continue;
      }
      if (range[0] > start) piece(text.substr(start, range[0] - start));
      piece(text.substr(range[0], range[1] - range[0]));
      start = position = range[1];
    }
    if (start < text.size()) piece(text.substr(start));
  }

 private:
  static size_t next_character(std::string_view text, size_t at) {
    do {
      ++at;
    } while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80);
    return at;
  }

  struct FreeCode {
    void operator()(pcre2_code* code) const { pcre2_code_free(code); }
  };
  struct FreeMatch {
    void operator()(pcre2_match_data* match) const { pcre2_match_data_free(match); }
  };
  const std::string where_;
  std::unique_ptr<pcre2_code, FreeCode> code_;
};

std::string normalize_nfc(std::string_view text) {
  utf8proc_uint8_t* result = nullptr;
  const auto size =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   static_cast<utf8proc_ssize_t>(text.size()), &result,
                   static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(result, &std::free);
  if (size < 0) throw Error(ErrorCode::kInvalidInput, "text", "is not valid UTF-8");
  return {reinterpret_cast<const char*>(result), static_cast<size_t>(size)};
}

// ---- merging ------------------------------------------------------------------------------------

struct Merge {
  int32_t rank;
  int32_t result;
};

uint64_t pair_key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

class Bpe {
 public:
  std::unordered_map<std::string, int32_t> vocab;  // by bytes
  std::unordered_map<uint64_t, Merge> merges;
  std::array<int32_t, 256> byte_id{};
  bool ignore_merges = false;

  // Merges the pair of lowest rank, the leftmost first, until none is left.
  void encode(std::string_view word, std::vector<int32_t>& ids) const {
    if (ignore_merges) {
      const auto whole = vocab.find(std::string(word));
      if (whole != vocab.end()) return ids.push_back(whole->second);
    }
    struct Symbol {
      int32_t id;
      int previous, next;  // indices; -1 at the ends
    };
    struct Candidate {
      int32_t rank;
      int left;
      int32_t left_id, right_id;  // as they were when it was found
      bool operator<(const Candidate& other) const {
        return rank != other.rank ? rank > other.rank : left > other.left;
      }
    };
    const auto count = static_cast<int>(word.size());
    std::vector<Symbol> symbols;
    symbols.reserve(word.size());
    for (int i = 0; i < count; ++i) {
      symbols.push_back(
          {byte_id[static_cast<unsigned char>(word[i])], i - 1, i + 1 < count ? i + 1 : -1});
    }
    std::priority_queue<Candidate> queue;
    const auto consider = [&](int left) {
      if (left < 0 || symbols[left].next < 0) return;
      const int32_t a = symbols[left].id, b = symbols[symbols[left].next].id;
      const auto found = merges.find(pair_key(a, b));
      if (found != merges.end()) queue.push({found->second.rank, left, a, b});
    };
    for (int i = 0; i < count; ++i) consider(i);
    while (!queue.empty()) {
      const Candidate best = queue.top();
      queue.pop();
      Symbol& left = symbols[best.left];
      const int right = left.next;
      // Merged away or changed since it was found.
      if (left.id != best.left_id || right < 0 || symbols[right].id != best.right_id) continue;
      left.id = merges.at(pair_key(best.left_id, best.right_id)).result;
      left.next = symbols[right].next;
      if (left.next >= 0) symbols[left.next].previous = best.left;
      symbols[right].id = -1;
      consider(left.previous);
      consider(best.left);
    }
    for (int i = 0; i >= 0 && i < count; i = symbols[i].next) {
      ids.push_back(symbols[i].id);
      if (symbols[i].next < 0) break;
    }
  }
};

// ---- reading the file ---------------------------------------------------------------------------

[[noreturn]] void unsupported(const std::string& where, const std::string& part) {
  throw Error(ErrorCode::kUnsupported, where, "{} is not one that is supported", part);
}

int32_t read_id(const json& value, const std::string& where, const std::string& token) {
  constexpr uint64_t kMost = 1 << 24;
  // Unsigned is what the parser makes of every integer from 0 on.
  if (!value.is_number_unsigned() || value.get<uint64_t>() > kMost) {
    throw Error(ErrorCode::kInvalidInput, where, "token '{}' has no id from 0 to {}",
                printable(token), kMost);
  }
  return value.get<int32_t>();
}

void read_vocab(const ConfigReader& model, const std::string& where, Bpe& bpe, int32_t& size) {
  const ByteAlphabet alphabet;
  const ConfigReader vocab = model.object("vocab");
  for (const auto& [token, value] : vocab.json().items()) {
    const int32_t id = read_id(value, where, token);
    size = std::max(size, id + 1);
    if (const auto bytes = alphabet.decode(token)) bpe.vocab.emplace(*bytes, id);
  }
  for (int byte = 0; byte < 256; ++byte) {
    const auto found = bpe.vocab.find(std::string(1, static_cast<char>(byte)));
    if (found == bpe.vocab.end()) {
      throw Error(ErrorCode::kInvalidInput, where, "model.vocab has no token for byte {}", byte);
    }
    bpe.byte_id[byte] = found->second;
  }
}

void read_merges(const ConfigReader& model, const std::string& where, Bpe& bpe) {
  const ByteAlphabet alphabet;
  int32_t rank = 0;
  for (const auto& merge : model.list("merges")) {
    std::string left, right;
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      left = merge[0].get<std::string>();
      right = merge[1].get<std::string>();
    } else if (merge.is_string()) {  // "left right", as older files have it
      const auto text = merge.get<std::string>();
      const size_t space = text.find(' ');
      left = text.substr(0, space);
      if (space != std::string::npos) right = text.substr(space + 1);
    }
    const auto a = alphabet.decode(left), b = alphabet.decode(right);
    const auto id = [&](const std::optional<std::string>& bytes) {
      const auto found = bytes ? bpe.vocab.find(*bytes) : bpe.vocab.end();
      return found == bpe.vocab.end() ? -1 : found->second;
    };
    const int32_t left_id = id(a), right_id = id(b);
    const int32_t result = a && b ? id(*a + *b) : -1;
    if (left_id < 0 || right_id < 0 || result < 0) {
      throw Error(ErrorCode::kInvalidInput, where, "merge {} ('{}' '{}') is not of known tokens",
                  rank, printable(left), printable(right));
    }
    bpe.merges.emplace(pair_key(left_id, right_id), Merge{rank++, result});
  }
}

// The pattern of the one Split; ByteLevel must not split again.
std::string read_pattern(const ConfigReader& pre_tokenizer, const std::string& where) {
  if (pre_tokenizer.text("type") != "Sequence") unsupported(where, "pre_tokenizer");
  std::string pattern;
  bool bytes = false;
  for (const ConfigReader& part : pre_tokenizer.objects("pretokenizers")) {
    const std::string type = part.text("type");
    if (type == "Split" && pattern.empty() && part.text("behavior") == "Isolated" &&
        !part.boolean("invert", false)) {
      pattern = part.object("pattern").text("Regex");
    } else if (type == "ByteLevel" && !part.boolean("use_regex", true) &&
               !part.boolean("add_prefix_space", true)) {
      bytes = true;
    } else {
      unsupported(where, "pre_tokenizer " + printable(type));
    }
  }
  if (pattern.empty() || !bytes) unsupported(where, "pre_tokenizer");
  return pattern;
}

// Options that change what text becomes; the values here are the only ones that are known.
void check_options(const ConfigReader& model, const std::string& where) {
  for (const char* option : {"byte_fallback", "fuse_unk"}) {
    if (model.boolean(option, false)) unsupported(where, std::string("model.") + option);
  }
  for (const char* option : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!model.text(option, "").empty()) unsupported(where, std::string("model.") + option);
  }
  if (model.number("dropout", 0) != 0) unsupported(where, "model.dropout");
}

}  // namespace

struct Tokenizer::State {
  Bpe bpe;
  bool nfc = false;
  std::unique_ptr<Splitter> splitter;
  std::vector<std::pair<std::string, int32_t>> added;  // longest first
  int32_t vocab_size = 0;

  void read_added(const std::vector<ConfigReader>& tokens, const std::string& where) {
    for (const ConfigReader& token : tokens) {
      const std::string content = token.text("content");
      for (const char* option : {"lstrip", "rstrip", "single_word"}) {
        if (token.boolean(option, false)) {
          unsupported(where, fmt::format("added token '{}' with {}", printable(content), option));
        }
      }
      const int32_t id = read_id(token.field("id"), where, content);
      vocab_size = std::max(vocab_size, id + 1);
      if (!content.empty()) added.emplace_back(content, id);
    }
    std::sort(added.begin(), added.end(), [](const auto& a, const auto& b) {
      return a.first.size() != b.first.size() ? a.first.size() > b.first.size() : a < b;
    });
  }

  // The added token that text starts with, the longest of them.
  const std::pair<std::string, int32_t>* added_at(std::string_view text) const {
    for (const auto& token : added) {
      if (text.starts_with(token.first)) return &token;
    }
    return nullptr;
  }

  void encode_plain(std::string_view text, std::vector<int32_t>& ids) const {
    const std::string normalized = nfc ? normalize_nfc(text) : std::string(text);
    splitter->split(normalized, [&](std::string_view piece) { bpe.encode(piece, ids); });
  }
};

Tokenizer::Tokenizer(std::unique_ptr<State> state) : state_(std::move(state)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Tokenizer Tokenizer::load(const std::filesystem::path& path) {
  return parse(read_json_file(path), path.string());
}

Tokenizer Tokenizer::parse(const json& document, const std::string& where) {
  auto state = std::make_unique<State>();
  const ConfigReader file(document, where);
  const ConfigReader model = file.object("model");
  const std::string type = model.text("type");
  if (type != "BPE") unsupported(where, "model " + printable(type));
  check_options(model, where);
  read_vocab(model, where, state->bpe, state->vocab_size);
  read_merges(model, where, state->bpe);
  state->bpe.ignore_merges = model.boolean("ignore_merges", false);

  state->nfc = file.has("normalizer");
  if (state->nfc) {
    const std::string normalizer = file.object("normalizer").text("type");
    if (normalizer != "NFC") unsupported(where, "normalizer " + printable(normalizer));
  }
  state->splitter =
      std::make_unique<Splitter>(read_pattern(file.object("pre_tokenizer"), where), where);

  if (file.has("added_tokens")) state->read_added(file.objects("added_tokens"), where);
  return Tokenizer(std::move(state));
}

std::vector<int32_t> Tokenizer::encode(std::string_view text) const {
  if (!is_valid_utf8(text)) throw Error(ErrorCode::kInvalidInput, "text", "is not valid UTF-8");
  std::vector<int32_t> ids;
  size_t start = 0;
  for (size_t at = 0; at < text.size();) {
    const auto* token = state_->added_at(text.substr(at));
    if (token == nullptr) {
      ++at;
      continue;
    }
    state_->encode_plain(text.substr(start, at - start), ids);
    ids.push_back(token->second);
    start = at += token->first.size();
  }
  state_->encode_plain(text.substr(start), ids);
  return ids;
}

std::optional<int32_t> Tokenizer::find(std::string_view token) const {
  for (const auto& [content, id] : state_->added) {
    if (content == token) return id;
  }
  return std::nullopt;
}

int32_t Tokenizer::vocab_size() const { return state_->vocab_size; }

}  // namespace halftone
