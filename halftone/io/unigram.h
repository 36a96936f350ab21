// sentencepiece's Unigram: the pieces whose probabilities have the greatest product.
#pragma once

#include <string>

#include "halftone/io/piece_trie.h"
#include "halftone/io/token_model.h"

namespace halftone {

struct UnigramPiece {
  std::string text;
  double score;  // logarithm of its probability
};

struct UnigramOptions {
  int32_t unknown = -1;        // the token for what no piece covers; -1: such text is an Error
  bool byte_fallback = false;  // bytes of it become tokens <0x00> to <0xFF>, where they exist
};

class Unigram final : public TokenModel {
 public:
  Unigram(std::vector<UnigramPiece> pieces, UnigramOptions options, std::string where);

  void encode(std::string_view piece, std::vector<int32_t>& ids) const override;
  int32_t find(std::string_view token) const override { return trie_.find(token); }

 private:
  void add(std::string_view text, std::vector<int32_t>& ids) const;

  std::vector<UnigramPiece> pieces_;
  UnigramOptions options_;
  std::string where_;
  PieceTrie trie_;
  double unknown_score_ = 0;
};

}  // namespace halftone
