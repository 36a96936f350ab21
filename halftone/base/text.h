// Text for people: sizes, and an order of names in which layers.2 comes before layers.10.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace halftone {

// Three significant digits, without an exponent: "0.0123", "1.40", "850"; more before the point
// where there are more.
std::string three_digits(double value);
// For JSON, as short as the float can be said: 0.3, and not what a double makes of it.
double short_number(float value);
std::string human_bytes(int64_t bytes);     // "1.50 MiB"
std::string human_seconds(double seconds);  // "0.500 ms", "1.40 ms", "12.3 s", "2 min 05 s"
// "2G", "512MiB" or a number of bytes; otherwise an Error about `where`, a flag or a field.
int64_t parse_bytes(const std::string& text, const std::string& where);
bool natural_less(std::string_view a, std::string_view b);

// Whether `text` matches a pattern in which * stands for any characters and ? for one.
bool glob_match(std::string_view pattern, std::string_view text);

// Bytes as letters, with padding.
std::string base64(std::string_view bytes);

}  // namespace halftone
