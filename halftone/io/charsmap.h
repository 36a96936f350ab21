// sentencepiece's table of what characters become before a text is cut into pieces: a Darts trie of
// what is replaced, and the replacements. Read as the `tokenizers` package reads it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace halftone {

class Charsmap {
 public:
  // The bytes as sentencepiece stores them; `where` and `field` name them in errors.
  Charsmap(std::string_view bytes, std::string where, std::string field);

  std::string apply(std::string_view text) const;

 private:
  // What the shortest key that `text` starts with becomes; false where none does.
  bool replacement(std::string_view text, std::string_view& result) const;

  std::vector<uint32_t> units_;
  std::string replacements_;  // each ends with a NUL
  std::string where_;
  std::string field_;
};

// Bytes written as base64; an Error where they are not.
std::string decode_base64(std::string_view text, const std::string& where,
                          const std::string& field);

}  // namespace halftone
