#include "halftone/io/charsmap.h"

#include <algorithm>
#include <array>

#include "halftone/base/error.h"
#include "halftone/io/unicode_text.h"

namespace halftone {
namespace {

// A unit of a Darts trie: the label of the way into it, how far its children lie, and whether one
// of them is a value.
uint32_t unit_label(uint32_t unit) { return unit & (1u << 31 | 0xFF); }
uint32_t unit_offset(uint32_t unit) { return unit >> 10 << ((unit & 1u << 9) >> 6); }
bool unit_has_value(uint32_t unit) { return (unit >> 8 & 1) != 0; }
uint32_t unit_value(uint32_t unit) { return unit & ~(1u << 31); }

// The longest replacement of any real table takes 33 bytes; without a limit a small text could
// become a huge one.
constexpr size_t kMostReplacement = 256;

}  // namespace

Charsmap::Charsmap(std::string_view bytes, std::string where, std::string field)
    : where_(std::move(where)), field_(std::move(field)) {
  const auto word = [&](size_t at) {
    uint32_t value = 0;
    for (int i = 3; i >= 0; --i) value = value << 8 | static_cast<unsigned char>(bytes[at + i]);
    return value;
  };
  const size_t size = bytes.size() < 4 ? 0 : word(0);
  if (size == 0 || size % 4 != 0 || size > bytes.size() - 4) {
    throw Error(ErrorCode::kInvalidInput, where_,
                "{}: {} bytes do not hold a trie with its replacements", field_, bytes.size());
  }
  units_.reserve(size / 4);
  for (size_t at = 4; at < 4 + size; at += 4) units_.push_back(word(at));
  replacements_ = bytes.substr(4 + size);
  if (!is_valid_utf8(replacements_)) {
    throw Error(ErrorCode::kInvalidInput, where_, "{}: replacements are not UTF-8", field_);
  }
}

bool Charsmap::replacement(std::string_view text, std::string_view& result) const {
  uint32_t at = unit_offset(units_[0]);
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte == 0) return false;
    at ^= byte;
    if (at >= units_.size() || unit_label(units_[at]) != byte) return false;
    const uint32_t unit = units_[at];
    at ^= unit_offset(unit);
    if (!unit_has_value(unit)) continue;
    const size_t start = at < units_.size() ? unit_value(units_[at]) : replacements_.size() + 1;
    const size_t end = start > replacements_.size()
                           ? start
                           : std::min(replacements_.find('\0', start), replacements_.size());
    const bool inside = start <= replacements_.size() && end - start <= kMostReplacement;
    if (!inside || (start < end && (replacements_[start] & 0xC0) == 0x80)) {
      throw Error(ErrorCode::kInvalidInput, where_, "{}: the trie points to no replacement",
                  field_);
    }
    result = std::string_view(replacements_).substr(start, end - start);
    return true;
  }
  return false;
}

std::string Charsmap::apply(std::string_view text) const {
  // A cluster of characters takes the replacement of its shortest key as a whole, if it is short:
  // marks after a ligature are lost. That is what the reference does.
  constexpr size_t kShortCluster = 6;
  std::string result;
  result.reserve(text.size());
  std::string_view replaced;
  while (!text.empty()) {
    const size_t cluster = grapheme_end(text);
    if (cluster < kShortCluster && replacement(text.substr(0, cluster), replaced)) {
      result += replaced;
    } else {
      for (size_t at = 0; at < cluster;) {
        const auto character = text.substr(at, first_character(text.substr(at)).bytes);
        result += replacement(character, replaced) ? replaced : character;
        at += character.size();
      }
    }
    text.remove_prefix(cluster);
  }
  return result;
}

std::string decode_base64(std::string_view text, const std::string& where,
                          const std::string& field) {
  const auto bad = [&] { throw Error(ErrorCode::kInvalidInput, where, "{} is not base64", field); };
  std::array<int8_t, 256> value{};
  value.fill(-1);
  const std::string_view letters =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  for (size_t i = 0; i < letters.size(); ++i) {
    value[static_cast<unsigned char>(letters[i])] = static_cast<int8_t>(i);
  }
  if (text.size() % 4 != 0) bad();
  const size_t padding = text.ends_with("==") ? 2 : text.ends_with("=") ? 1 : 0;
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3);
  uint32_t bits = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool filler = i >= text.size() - padding;
    const int letter = filler ? 0 : value[static_cast<unsigned char>(text[i])];
    if (letter < 0) bad();
    bits = bits << 6 | static_cast<uint32_t>(letter);
    if (i % 4 != 3) continue;
    for (const int shift : {16, 8, 0}) bytes += static_cast<char>(bits >> shift);
  }
  bytes.resize(bytes.size() - padding);
  return bytes;
}

}  // namespace halftone
