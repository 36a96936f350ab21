#include "halftone/io/unicode_text.h"

#include <utf8proc.h>

#include <algorithm>
#include <vector>

#include "halftone/base/error.h"

namespace halftone {
namespace {

bool is_continuation(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; }

// Puts the marks between two starters in the order of their classes. utf8proc does that as well, in
// time that grows with the square of their number; what is in order it only passes over.
void order_marks(std::vector<utf8proc_int32_t>& characters) {
  const auto mark_class = [](utf8proc_int32_t c) {
    return utf8proc_get_property(c)->combining_class;
  };
  struct Mark {
    int order;  // class, and among equals the place
    size_t place;
    utf8proc_int32_t character;
    bool operator<(const Mark& other) const {
      return order != other.order ? order < other.order : place < other.place;
    }
  };
  std::vector<Mark> marks;
  for (size_t at = 0; at <= characters.size(); ++at) {
    const int order = at < characters.size() ? mark_class(characters[at]) : 0;
    if (order != 0) {
      marks.push_back({order, at, characters[at]});
      continue;
    }
    std::sort(marks.begin(), marks.end());
    size_t place = at - marks.size();
    for (const Mark& mark : marks) characters[place++] = mark.character;
    marks.clear();
  }
}

}  // namespace

Character first_character(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  if (lead < 0x80) return {lead, 1};
  const size_t bytes = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  HT_ASSERT(text.size() >= bytes);
  char32_t code = lead & (0xFF >> (bytes + 1));
  for (size_t i = 1; i < bytes; ++i) code = code << 6 | (static_cast<unsigned char>(text[i]) & 63);
  return {code, bytes};
}

void append_utf8(char32_t character, std::string& text) {
  const auto add = [&](char32_t byte) { text += static_cast<char>(byte); };
  const auto more = [&](int shift) { add(0x80 | (character >> shift & 63)); };
  if (character < 0x80) return add(character);
  if (character < 0x800) {
    add(0xC0 | character >> 6);
  } else if (character < 0x10000) {
    add(0xE0 | character >> 12);
    more(6);
  } else {
    add(0xF0 | character >> 18);
    more(12);
    more(6);
  }
  more(0);
}

bool is_white_space(char32_t c) {
  return (c >= 0x9 && c <= 0xD) || c == ' ' || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

size_t leading_space(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const auto [code, bytes] = first_character(text.substr(at));
    if (!is_white_space(code)) break;
    at += bytes;
  }
  return at;
}

size_t trailing_space(std::string_view text) {
  size_t end = text.size();
  while (end > 0) {
    size_t start = end - 1;
    while (start > 0 && is_continuation(text[start])) --start;
    if (!is_white_space(first_character(text.substr(start)).code)) break;
    end = start;
  }
  return text.size() - end;
}

std::string compose_nfc(std::string_view text) {
  if (std::all_of(text.begin(), text.end(), [](char c) { return (c & 0x80) == 0; })) {
    return std::string(text);
  }
  std::vector<utf8proc_int32_t> characters;
  characters.reserve(text.size());
  while (!text.empty()) {
    const auto [code, bytes] = first_character(text);
    text.remove_prefix(bytes);
    utf8proc_int32_t parts[8];
    int last = 0;
    const auto count = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(code), parts, 8,
                                               UTF8PROC_DECOMPOSE, &last);
    HT_ASSERT(count >= 1 && count <= 8);  // a canonical decomposition has at most four
    characters.insert(characters.end(), parts, parts + count);
  }
  order_marks(characters);
  const auto composed =
      utf8proc_normalize_utf32(characters.data(), static_cast<utf8proc_ssize_t>(characters.size()),
                               static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  HT_ASSERT(composed >= 0);
  std::string result;
  for (utf8proc_ssize_t i = 0; i < composed; ++i) {
    append_utf8(static_cast<char32_t>(characters[i]), result);
  }
  return result;
}

std::string lower_case(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    const auto [code, bytes] = first_character(text);
    if (code < 0x80) {
      result += code >= 'A' && code <= 'Z' ? static_cast<char>(code + 32) : static_cast<char>(code);
    } else if (code == 0x130) {  // the one character whose lower case is longer
      result += "i\xCC\x87";
    } else {
      append_utf8(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code))),
                  result);
    }
    text.remove_prefix(bytes);
  }
  return result;
}

size_t grapheme_end(std::string_view text) {
  auto [last, at] = first_character(text);
  utf8proc_int32_t state = 0;
  while (at < text.size()) {
    const auto [next, bytes] = first_character(text.substr(at));
    if (utf8proc_grapheme_break_stateful(static_cast<utf8proc_int32_t>(last),
                                         static_cast<utf8proc_int32_t>(next), &state)) {
      break;
    }
    last = next;
    at += bytes;
  }
  return at;
}

}  // namespace halftone
