#include "halftone/io/unigram.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "halftone/base/error.h"
#include "halftone/io/unicode_text.h"

namespace halftone {
namespace {

constexpr double kUnknownPenalty = 10;
// What a text costs grows with the longest piece; those of real models take tens of bytes.
constexpr size_t kMostPieceBytes = 1024;

PieceTrie trie_of(const std::vector<UnigramPiece>& pieces) {
  std::vector<std::pair<std::string_view, int32_t>> entries;
  entries.reserve(pieces.size());
  for (const UnigramPiece& piece : pieces) {
    entries.emplace_back(piece.text, static_cast<int32_t>(entries.size()));
  }
  return PieceTrie(entries);
}

}  // namespace

Unigram::Unigram(std::vector<UnigramPiece> pieces, UnigramOptions options, std::string where)
    : pieces_(std::move(pieces)), options_(options), where_(std::move(where)) {
  double least = std::numeric_limits<double>::infinity();
  for (const UnigramPiece& piece : pieces_) {
    if (piece.text.size() > kMostPieceBytes || !std::isfinite(piece.score)) {
      throw Error(ErrorCode::kInvalidInput, where_,
                  "piece {} ('{}') has a score of {} and {} bytes, which is not possible",
                  &piece - pieces_.data(), printable(piece.text, 40), piece.score,
                  piece.text.size());
    }
    if (!is_valid_utf8(piece.text)) {
      throw Error(ErrorCode::kInvalidInput, where_, "piece {} ('{}') is not UTF-8",
                  &piece - pieces_.data(), printable(piece.text, 40));
    }
    least = std::min(least, piece.score);
  }
  if (pieces_.empty()) throw Error(ErrorCode::kInvalidInput, where_, "has no pieces");
  if (options_.unknown >= static_cast<int32_t>(pieces_.size())) {
    throw Error(ErrorCode::kInvalidInput, where_, "unk_id {} is not that of one of {} pieces",
                options_.unknown, pieces_.size());
  }
  unknown_score_ = least - kUnknownPenalty;
  trie_ = trie_of(pieces_);
}

void Unigram::encode(std::string_view text, std::vector<int32_t>& ids) const {
  constexpr size_t kNone = std::numeric_limits<size_t>::max();
  struct Ending {  // the best way to cut the text up to a place
    int32_t id = 0;
    double score = 0;
    size_t start = kNone;  // of its last piece
  };
  std::vector<Ending> endings(text.size() + 1);
  for (size_t at = 0; at < text.size();) {
    const size_t character = first_character(text.substr(at)).bytes;
    const double before = endings[at].score;
    bool covered = false;
    const auto consider = [&](size_t length, int32_t id, double score) {
      Ending& ending = endings[at + length];
      if (ending.start == kNone || before + score > ending.score) {
        ending = {id, before + score, at};
      }
      covered |= length == character;
    };
    trie_.prefixes(text.substr(at),
                   [&](size_t length, int32_t id) { consider(length, id, pieces_[id].score); });
    if (!covered) {
      if (options_.unknown < 0) {
        throw Error(ErrorCode::kInvalidInput, where_, "no piece covers '{}', and unk_id is not set",
                    printable(text.substr(at, character)));
      }
      consider(character, options_.unknown, unknown_score_);
    }
    at += character;
  }
  // Backwards; neighbouring unknown characters are one token.
  std::vector<std::string_view> cuts;
  size_t unknown_end = 0;  // of the run of unknown ones that is open; 0: none is
  for (size_t end = text.size(); end > 0;) {
    const Ending& ending = endings[end];
    const bool unknown = ending.id == options_.unknown;
    if (unknown && unknown_end == 0) unknown_end = end;
    if (!unknown) {
      if (unknown_end > 0) cuts.push_back(text.substr(end, unknown_end - end));
      unknown_end = 0;
      cuts.push_back(text.substr(ending.start, end - ending.start));
    }
    end = ending.start;
  }
  if (unknown_end > 0) cuts.push_back(text.substr(0, unknown_end));
  std::for_each(cuts.rbegin(), cuts.rend(), [&](std::string_view cut) { add(cut, ids); });
}

void Unigram::add(std::string_view text, std::vector<int32_t>& ids) const {
  const int32_t id = trie_.find(text);
  if (id >= 0) return ids.push_back(id);
  if (options_.byte_fallback) {
    const size_t before = ids.size();
    for (const char byte : text) {
      const int32_t token = trie_.find(fmt::format("<0x{:02X}>", static_cast<unsigned char>(byte)));
      if (token < 0) break;
      ids.push_back(token);
    }
    if (ids.size() == before + text.size()) return;
    ids.resize(before);
  }
  ids.push_back(options_.unknown);
}

}  // namespace halftone
