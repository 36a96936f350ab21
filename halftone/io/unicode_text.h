// What tokenizers do to whole texts: Unicode's canonical composition and lower case, and what
// counts as white space. Texts are valid UTF-8; all of it takes time in proportion to the text.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace halftone {

// The character that text starts with, and how many bytes it takes. `text` is not empty.
struct Character {
  char32_t code;
  size_t bytes;
};
Character first_character(std::string_view text);
void append_utf8(char32_t character, std::string& text);

// Unicode's property White_Space.
bool is_white_space(char32_t character);
size_t leading_space(std::string_view text);   // in bytes
size_t trailing_space(std::string_view text);  // in bytes

std::string compose_nfc(std::string_view text);

// Character by character, as Rust's char::to_lowercase: a final sigma is like any other, and a
// dotted capital I becomes two characters.
std::string lower_case(std::string_view text);

// Where the grapheme cluster that text starts with ends. `text` is not empty.
size_t grapheme_end(std::string_view text);

}  // namespace halftone
