// Byte-level BPE: bytes become tokens, and pairs are merged in the order in which training found
// them. With a suffix such as </w>, the last byte of a piece is a token of its own kind.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <unordered_map>

#include "halftone/io/token_model.h"

namespace halftone {

class Bpe final : public TokenModel {
 public:
  explicit Bpe(std::string end_of_word = {}) : end_of_word_(std::move(end_of_word)) {}

  void reserve(size_t tokens, size_t merges);
  // A token as files write it: printable bytes for themselves, the others as characters from
  // U+0100.
  void add_token(const std::string& token, int32_t id);
  // Merges in their order, after all tokens. False where one of the three tokens is not there.
  bool add_merge(const std::string& left, const std::string& right);
  // To be called when all tokens are there. Bytes without a token become `unknown`; without that
  // they are an Error.
  void check_bytes(const std::string& where, const std::optional<std::string>& unknown);
  void ignore_merges(bool ignore) { ignore_merges_ = ignore; }

  void encode(std::string_view piece, std::vector<int32_t>& ids) const override;
  int32_t find(std::string_view token) const override;

 private:
  struct Merge {
    int32_t rank;
    int32_t result;
  };
  int32_t find_bytes(const std::string& bytes) const;

  std::string end_of_word_;
  bool ignore_merges_ = false;
  std::unordered_map<std::string, int32_t> ids_;     // by bytes
  std::unordered_map<std::string, int32_t> others_;  // tokens that are no bytes, as written
  std::unordered_map<uint64_t, Merge> merges_;
  int32_t next_rank_ = 0;
  std::array<int32_t, 256> first_{};  // the tokens of bytes
  std::array<int32_t, 256> last_{};   // the same at the end of a piece
};

}  // namespace halftone
