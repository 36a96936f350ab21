// Tokens that are found in a text before it is split, such as <|im_end|> and <extra_id_0>.
#pragma once

#include <optional>
#include <string>

#include "halftone/io/config_reader.h"
#include "halftone/io/piece_trie.h"

namespace halftone {

struct AddedToken {
  std::string content;
  int32_t id = -1;
  bool left_space = false, right_space = false;  // white space beside it belongs to it
  bool normalized = false;                       // looked for in the normalized text
};

// The flags of a token from JSON; `where` and the token are named where one is not supported.
// `normalized` is what it is where the file does not say.
AddedToken read_added_token(const ConfigReader& token, const std::string& where, bool normalized);
// A token's id from JSON.
int32_t read_token_id(const nlohmann::json& value, const std::string& where,
                      const std::string& token);

class AddedTokens {
 public:
  // Where two have the same content, the first one counts.
  void add(AddedToken token);
  // To be called when all are there. `normalize` is what the tokenizer does to texts.
  template <class Fn>
  void finish(const Fn& normalize) {
    std::vector<std::string> contents;
    for (const AddedToken& token : tokens_) {
      contents.push_back(token.normalized ? normalize(token.content) : token.content);
    }
    build(contents);
  }

  std::optional<int32_t> find(std::string_view content) const;
  const std::vector<AddedToken>& all() const { return tokens_; }

  // Cuts the text at the tokens that are looked for in normalized texts, or in others: plain(text,
  // offset) for what lies between, token(id) for each.
  template <class Plain, class Token>
  void split(std::string_view text, bool normalized, const Plain& plain, const Token& token) const {
    const PieceTrie& trie = normalized ? normalized_ : raw_;
    size_t start = 0;
    for (size_t at = 0; at < text.size();) {
      const std::optional<Match> match = match_at(trie, text, at, start);
      if (!match) {
        ++at;
        continue;
      }
      if (match->start > start) plain(text.substr(start, match->start - start), start);
      token(match->id);
      start = at = match->end;
    }
    if (start < text.size()) plain(text.substr(start), start);
  }

 private:
  struct Match {
    size_t start, end;
    int32_t id;
  };
  void build(const std::vector<std::string>& contents);
  std::optional<Match> match_at(const PieceTrie& trie, std::string_view text, size_t at,
                                size_t start) const;

  std::vector<AddedToken> tokens_;
  PieceTrie raw_, normalized_;  // values are indices of tokens_
};

}  // namespace halftone
