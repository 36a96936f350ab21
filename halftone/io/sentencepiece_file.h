// sentencepiece's own file (spiece.model, tokenizer.model): a protobuf message with pieces, the
// table that normalizes characters, and how it was trained.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace halftone {

struct SentencePiece {
  enum Kind { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };
  std::string text;
  float score = 0;
  int32_t kind = kNormal;
};

// Fields that are not in the file have the values that sentencepiece gives them.
struct SentencePieceFile {
  enum Model { kUnigram = 1, kBpe = 2, kWord = 3, kChar = 4 };
  std::vector<SentencePiece> pieces;
  // trainer_spec
  int32_t model = kUnigram;
  bool treat_whitespace_as_suffix = false;
  bool byte_fallback = false;
  int32_t unk_id = 0, bos_id = 1, eos_id = 2, pad_id = -1;
  // normalizer_spec
  std::string normalizer;
  std::string charsmap;  // empty: characters stay as they are
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;
};

// `where` names the source in errors.
SentencePieceFile parse_sentencepiece(std::string_view bytes, const std::string& where);

}  // namespace halftone
