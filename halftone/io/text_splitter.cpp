#include "halftone/io/text_splitter.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <new>

#include "halftone/base/error.h"

namespace halftone {
namespace {

// Unicode's White_Space. PCRE2's own \s also takes U+180E, which was one before Unicode 6.3.
constexpr const char* kSpaces =
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}"
    "\\x{205f}\\x{3000}";

// The pattern with \s, and outside of brackets \S, spelled out.
std::string with_spaces(const std::string& pattern) {
  std::string result;
  bool brackets = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '\\' && i + 1 < pattern.size()) {
      const char kind = pattern[++i];
      if (kind == 's') {
        result += brackets ? kSpaces : std::string("[") + kSpaces + "]";
      } else if (kind == 'S' && !brackets) {
        result += std::string("[^") + kSpaces + "]";
      } else {
        result += {c, kind};
      }
      continue;
    }
    result += c;
    if (!brackets && c == '[') {
      brackets = true;
      // A bracket that comes first stands for itself.
      if (i + 1 < pattern.size() && pattern[i + 1] == '^') result += pattern[++i];
      if (i + 1 < pattern.size() && pattern[i + 1] == ']') result += pattern[++i];
    } else if (c == ']') {
      brackets = false;
    }
  }
  return result;
}

size_t after_character(std::string_view text, size_t at) {
  do {
    ++at;
  } while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80);
  return at;
}

struct FreeMatch {
  void operator()(pcre2_match_data* match) const { pcre2_match_data_free(match); }
};

}  // namespace

struct TextSplitter::Code {
  pcre2_code* code = nullptr;
  ~Code() { pcre2_code_free(code); }
};

TextSplitter::TextSplitter(const std::string& pattern, std::string where, std::string field)
    : where_(std::move(where)), field_(std::move(field)), code_(std::make_unique<Code>()) {
  const std::string spelled = with_spaces(pattern);
  int error = 0;
  PCRE2_SIZE offset = 0;
  code_->code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(spelled.data()), spelled.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &offset, nullptr);
  if (code_->code == nullptr) {
    throw Error(ErrorCode::kInvalidInput, where_, "{}: bad regular expression '{}'", field_,
                printable(pattern));
  }
  pcre2_jit_compile(code_->code, PCRE2_JIT_COMPLETE);  // faster where it is possible
}

TextSplitter::TextSplitter(TextSplitter&&) noexcept = default;
TextSplitter::~TextSplitter() = default;

void TextSplitter::split(std::string_view text,
                         const std::function<void(std::string_view, bool)>& piece) const {
  // Of this call alone: threads share a splitter.
  const std::unique_ptr<pcre2_match_data, FreeMatch> match(
      pcre2_match_data_create_from_pattern(code_->code, nullptr));
  if (!match) throw std::bad_alloc();
  size_t position = 0, start = 0;
  while (position < text.size()) {
    const int count = pcre2_match(code_->code, reinterpret_cast<PCRE2_SPTR>(text.data()),
                                  text.size(), position, PCRE2_NO_UTF_CHECK, match.get(), nullptr);
    if (count == PCRE2_ERROR_NOMATCH) break;
    if (count < 0) {  // a pattern that backtracks without end
      throw Error(ErrorCode::kInvalidInput, where_,
                  "{}: the regular expression gives up on this text (error {})", field_, count);
    }
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(match.get());
    if (range[1] <= range[0] || range[0] < start) {  // would not advance
      position = after_character(text, std::max(range[1], position));
      continue;
    }
    if (range[0] > start) piece(text.substr(start, range[0] - start), false);
    piece(text.substr(range[0], range[1] - range[0]), true);
    start = position = range[1];
  }
  if (start < text.size()) piece(text.substr(start), false);
}

}  // namespace halftone
