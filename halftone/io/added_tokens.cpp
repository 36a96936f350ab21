#include "halftone/io/added_tokens.h"

#include "halftone/io/unicode_text.h"

namespace halftone {

// As long as a longest piece of a model: what a text costs grows with it.
constexpr size_t kMostTokenBytes = 1024;

AddedToken read_added_token(const ConfigReader& token, const std::string& where, bool normalized) {
  AddedToken added;
  added.content = token.text("content");
  if (added.content.size() > kMostTokenBytes) {
    throw Error(ErrorCode::kUnsupported, where, "added token '{}' of {} bytes is too long",
                printable(added.content, 40), added.content.size());
  }
  if (token.boolean("single_word", false)) {
    throw Error(ErrorCode::kUnsupported, where,
                "added token '{}' with single_word is not one that is supported",
                printable(added.content));
  }
  added.left_space = token.boolean("lstrip", false);
  added.right_space = token.boolean("rstrip", false);
  added.normalized = token.boolean("normalized", normalized);
  return added;
}

int32_t read_token_id(const nlohmann::json& value, const std::string& where,
                      const std::string& token) {
  constexpr uint64_t kMost = 1 << 24;
  // Unsigned is what the parser makes of every integer from 0 on.
  if (!value.is_number_unsigned() || value.get<uint64_t>() > kMost) {
    throw Error(ErrorCode::kInvalidInput, where, "token '{}' has no id from 0 to {}",
                printable(token), kMost);
  }
  return value.get<int32_t>();
}

void AddedTokens::add(AddedToken token) {
  if (token.content.empty()) return;
  tokens_.push_back(std::move(token));
}

void AddedTokens::build(const std::vector<std::string>& contents) {
  std::vector<std::pair<std::string_view, int32_t>> raw, normalized;
  for (size_t i = tokens_.size(); i-- > 0;) {  // so that the first of equal ones counts
    (tokens_[i].normalized ? normalized : raw).emplace_back(contents[i], static_cast<int32_t>(i));
  }
  raw_ = PieceTrie(raw);
  normalized_ = PieceTrie(normalized);
}

std::optional<int32_t> AddedTokens::find(std::string_view content) const {
  for (const AddedToken& token : tokens_) {
    if (token.content == content) return token.id;
  }
  return std::nullopt;
}

std::optional<AddedTokens::Match> AddedTokens::match_at(const PieceTrie& trie,
                                                        std::string_view text, size_t at,
                                                        size_t start) const {
  size_t length = 0;
  int32_t index = -1;
  trie.prefixes(text.substr(at), [&](size_t found, int32_t value) {
    length = found;
    index = value;
  });
  if (index < 0) return std::nullopt;
  const AddedToken& token = tokens_[index];
  Match match{at, at + length, token.id};
  if (token.left_space) match.start -= trailing_space(text.substr(start, at - start));
  if (token.right_space) match.end += leading_space(text.substr(match.end));
  return match;
}

}  // namespace halftone
