#include "halftone/io/bpe.h"

#include <queue>

#include "halftone/base/error.h"
#include "halftone/io/unicode_text.h"

namespace halftone {
namespace {

// Bytes that are printable stand for themselves; the others for characters from U+0100 on, in
// order. A token's text in the file is written in this alphabet.
class ByteAlphabet {
 public:
  ByteAlphabet() {
    byte_of_.fill(-1);
    size_t next = 256;
    for (int byte = 0; byte < 256; ++byte) {
      const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) ||
                             (byte >= 0xAE && byte <= 0xFF);
      byte_of_[printable ? static_cast<size_t>(byte) : next++] = static_cast<int16_t>(byte);
    }
  }

  // The bytes that a token's text stands for; nothing if it is not written in the alphabet.
  std::optional<std::string> decode(std::string_view text) const {
    std::string bytes;
    bytes.reserve(text.size());
    while (!text.empty()) {
      const auto [code, length] = first_character(text);
      if (code >= byte_of_.size() || byte_of_[code] < 0) return std::nullopt;
      bytes += static_cast<char>(byte_of_[code]);
      text.remove_prefix(length);
    }
    return bytes;
  }

 private:
  std::array<int16_t, 256 + 68> byte_of_{};
};

const ByteAlphabet& alphabet() {
  static const ByteAlphabet kAlphabet;
  return kAlphabet;
}

uint64_t pair_key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
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

}  // namespace

void Bpe::reserve(size_t tokens, size_t merges) {
  ids_.reserve(tokens);
  merges_.reserve(merges);
}

void Bpe::add_token(const std::string& token, int32_t id) {
  if (auto bytes = alphabet().decode(token)) {
    ids_.insert_or_assign(std::move(*bytes), id);
  } else {
    others_.insert_or_assign(token, id);
  }
}

bool Bpe::add_merge(const std::string& left, const std::string& right) {
  auto a = alphabet().decode(left);
  const auto b = alphabet().decode(right);
  if (!a || !b) return false;
  const int32_t left_id = find_bytes(*a), right_id = find_bytes(*b);
  const int32_t result = find_bytes(*a += *b);
  if (left_id < 0 || right_id < 0 || result < 0) return false;
  merges_.insert_or_assign(pair_key(left_id, right_id), Merge{next_rank_++, result});
  return true;
}

void Bpe::check_bytes(const std::string& where, const std::optional<std::string>& unknown) {
  const int32_t instead = unknown ? find(*unknown) : -1;
  if (unknown && instead < 0) {
    throw Error(ErrorCode::kInvalidInput, where, "unk_token '{}' is not in the vocabulary",
                printable(*unknown));
  }
  for (int byte = 0; byte < 256; ++byte) {
    const std::string text(1, static_cast<char>(byte));
    first_[byte] = find_bytes(text);
    last_[byte] = find_bytes(text + end_of_word_);
    for (int32_t* id : {&first_[byte], &last_[byte]}) {
      if (*id < 0) *id = instead;
      if (*id < 0) {
        throw Error(ErrorCode::kInvalidInput, where, "the vocabulary has no token for byte {}{}",
                    byte, id == &last_[byte] && !end_of_word_.empty() ? " at the end" : "");
      }
    }
  }
}

int32_t Bpe::find_bytes(const std::string& bytes) const {
  const auto found = ids_.find(bytes);
  return found == ids_.end() ? -1 : found->second;
}

int32_t Bpe::find(std::string_view token) const {
  if (const auto bytes = alphabet().decode(token)) return find_bytes(*bytes);
  const auto found = others_.find(std::string(token));
  return found == others_.end() ? -1 : found->second;
}

// Merges the pair of lowest rank, the leftmost first, until none is left.
void Bpe::encode(std::string_view word, std::vector<int32_t>& ids) const {
  if (word.empty()) return;
  if (ignore_merges_) {
    const int32_t whole = find_bytes(std::string(word));
    if (whole >= 0) return ids.push_back(whole);
  }
  const auto count = static_cast<int>(word.size());
  std::vector<Symbol> symbols;
  symbols.reserve(word.size());
  for (int i = 0; i < count; ++i) {
    const auto byte = static_cast<unsigned char>(word[i]);
    const bool last = i + 1 == count;
    symbols.push_back({last ? last_[byte] : first_[byte], i - 1, last ? -1 : i + 1});
  }
  std::priority_queue<Candidate> queue;
  const auto consider = [&](int left) {
    if (left < 0 || symbols[left].next < 0) return;
    const int32_t a = symbols[left].id, b = symbols[symbols[left].next].id;
    const auto found = merges_.find(pair_key(a, b));
    if (found != merges_.end()) queue.push({found->second.rank, left, a, b});
  };
  for (int i = 0; i < count; ++i) consider(i);
  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    Symbol& left = symbols[best.left];
    const int right = left.next;
    // Merged away or changed since it was found.
    if (left.id != best.left_id || right < 0 || symbols[right].id != best.right_id) continue;
    left.id = merges_.at(pair_key(best.left_id, best.right_id)).result;
    left.next = symbols[right].next;
    if (left.next >= 0) symbols[left.next].previous = best.left;
    symbols[right].id = -1;
    consider(left.previous);
    consider(best.left);
  }
  for (int i = 0; i >= 0; i = symbols[i].next) ids.push_back(symbols[i].id);
}

}  // namespace halftone
