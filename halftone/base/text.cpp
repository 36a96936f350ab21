#include "halftone/base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "halftone/base/error.h"

namespace halftone {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// The digits at the start of text, without leading zeros, and how many characters they take.
std::string_view leading_number(std::string_view text, size_t& length) {
  length = 0;
  while (length < text.size() && is_digit(text[length])) ++length;
  std::string_view digits = text.substr(0, length);
  while (digits.size() > 1 && digits[0] == '0') digits.remove_prefix(1);
  return digits;
}

}  // namespace

double short_number(float value) { return std::strtod(fmt::format("{}", value).c_str(), nullptr); }

std::string three_digits(double value) {
  if (value == 0 || !std::isfinite(value)) return fmt::format("{:.0f}", value);
  const std::string rounded = fmt::format("{:.2e}", value);
  const int exponent = std::atoi(rounded.c_str() + rounded.find('e') + 1);
  return fmt::format("{:.{}f}", value, std::max(0, 2 - exponent));
}

std::string human_bytes(int64_t bytes) {
  constexpr std::array<const char*, 6> kUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1023.5 && unit + 1 < kUnits.size()) {  // what would be rounded to 1024
    value /= 1024.0;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes)
                   : fmt::format("{} {}", three_digits(value), kUnits[unit]);
}

std::string human_seconds(double seconds) {
  if (seconds < 0.9995) return three_digits(seconds * 1e3) + " ms";
  if (seconds < 59.95) return three_digits(seconds) + " s";
  const auto whole = static_cast<int64_t>(seconds + 0.5);
  return fmt::format("{} min {:02d} s", whole / 60, whole % 60);
}

int64_t parse_bytes(const std::string& text, const std::string& where) {
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  const std::string unit = end;
  double factor = 0;
  if (unit.empty() || unit == "B") factor = 1;
  for (const auto& [letter, shift] : {std::pair{'K', 10}, {'M', 20}, {'G', 30}, {'T', 40}}) {
    const std::string name(1, letter);
    if (unit == name || unit == name + "iB" || unit == name + "B") factor = std::exp2(shift);
  }
  const bool decimal = text.find_first_of("xX") == std::string::npos;
  if (!decimal || factor == 0 || !(number > 0) || number * factor > 0x1p62) {
    throw Error(ErrorCode::kUsage, where, "'{}' is not a size such as 8GiB", printable(text));
  }
  return static_cast<int64_t>(number * factor);
}

bool natural_less(std::string_view a, std::string_view b) {
  const std::string_view whole_a = a, whole_b = b;
  while (!a.empty() && !b.empty()) {
    if (is_digit(a[0]) && is_digit(b[0])) {
      size_t length_a = 0, length_b = 0;
      const auto number_a = leading_number(a, length_a), number_b = leading_number(b, length_b);
      if (number_a.size() != number_b.size()) return number_a.size() < number_b.size();
      if (number_a != number_b) return number_a < number_b;
      a.remove_prefix(length_a);
      b.remove_prefix(length_b);
    } else {
      if (a[0] != b[0]) return static_cast<unsigned char>(a[0]) < static_cast<unsigned char>(b[0]);
      a.remove_prefix(1);
      b.remove_prefix(1);
    }
  }
  if (a.empty() != b.empty()) return a.empty();
  return whole_a < whole_b;  // "01" and "1" still need an order
}

bool glob_match(std::string_view pattern, std::string_view text) {
  // Linear in practice: on a mismatch go back to the last star and let it take one more.
  size_t p = 0, t = 0, star = std::string_view::npos, taken = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      taken = t;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t])) {
      ++p;
      ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++taken;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

std::string base64(std::string_view bytes) {
  constexpr const char* kLetters =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  const auto byte = [&](size_t i) {
    return i < bytes.size() ? static_cast<unsigned char>(bytes[i]) : uint32_t{0};
  };
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const uint32_t word = byte(i) << 16 | byte(i + 1) << 8 | byte(i + 2);
    out += kLetters[word >> 18];
    out += kLetters[word >> 12 & 63];
    out += i + 1 < bytes.size() ? kLetters[word >> 6 & 63] : '=';
    out += i + 2 < bytes.size() ? kLetters[word & 63] : '=';
  }
  return out;
}

}  // namespace halftone
