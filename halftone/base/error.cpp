#include "halftone/base/error.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>

namespace halftone {
namespace {

// Length of the well-formed UTF-8 sequence at the start of text, 0 if there is none.
size_t utf8_length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const auto continues = [&](size_t i) { return i < text.size() && (byte(i) & 0xC0) == 0x80; };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first <= 0xDF && continues(1)) return 2;
  if (first >= 0xE0 && first <= 0xEF && continues(1) && continues(2)) {
    const bool overlong = first == 0xE0 && byte(1) < 0xA0;
    const bool surrogate = first == 0xED && byte(1) >= 0xA0;
    return overlong || surrogate ? 0 : 3;
  }
  if (first >= 0xF0 && first <= 0xF4 && continues(1) && continues(2) && continues(3)) {
    const bool overlong = first == 0xF0 && byte(1) < 0x90;
    const bool beyond = first == 0xF4 && byte(1) >= 0x90;
    return overlong || beyond ? 0 : 4;
  }
  return 0;
}

// C0 and C1 controls and DEL would move the cursor or break the line.
bool is_control(std::string_view sequence) {
  const auto first = static_cast<unsigned char>(sequence[0]);
  if (sequence.size() == 1) return first < 0x20 || first == 0x7F;
  return sequence.size() == 2 && first == 0xC2 && static_cast<unsigned char>(sequence[1]) < 0xA0;
}

}  // namespace

bool is_valid_utf8(std::string_view text) {
  while (!text.empty()) {
    const size_t length = utf8_length(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

ErrorCode write_error(int system_errno) {
  const bool full = system_errno == ENOSPC || system_errno == EDQUOT;
  return full ? ErrorCode::kDiskFull : ErrorCode::kIo;
}

std::string printable(std::string_view text, size_t max_bytes) {
  std::string out;
  while (!text.empty()) {
    const size_t length = utf8_length(text);
    const std::string_view sequence = text.substr(0, length == 0 ? 1 : length);
    if (out.size() + sequence.size() > max_bytes) {
      out += "...";
      break;
    }
    if (length == 0 || is_control(sequence)) {
      for (const char c : sequence) {
        out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
      }
    } else {
      out += sequence;
    }
    text.remove_prefix(sequence.size());
  }
  return out;
}

Error::Error(Formatted message, ErrorCode code, std::string where)
    : code_(code), where_(std::move(where)), message_(std::move(message.text)) {
  const std::string line = where_.empty() ? message_ : where_ + ": " + message_;
  what_ = printable(line, 4000);
}

void detail::assertion_failed(const char* condition, const char* file, int line) {
  std::fprintf(stderr, "%s:%d: internal error: %s\n", file, line, condition);
  std::abort();
}

}  // namespace halftone
