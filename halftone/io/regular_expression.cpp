#include "halftone/io/regular_expression.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <memory>

#include "halftone/base/error.h"

namespace halftone {
namespace {

// Far more than names of modules need, and less than a second.
constexpr uint32_t kMostSteps = 1'000'000;
constexpr uint32_t kMostKibibytes = 16 << 10;

template <auto Free>
struct Freed {
  void operator()(auto* object) const { Free(object); }
};

}  // namespace

bool full_match(const std::string& pattern, std::string_view text, const std::string& where) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  const std::unique_ptr<pcre2_code, Freed<pcre2_code_free>> code(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                    PCRE2_UTF | PCRE2_ANCHORED | PCRE2_ENDANCHORED, &error, &offset, nullptr));
  if (!code) {
    throw Error(ErrorCode::kInvalidInput, where, "'{}' is not a regular expression",
                printable(pattern));
  }
  const std::unique_ptr<pcre2_match_data, Freed<pcre2_match_data_free>> match(
      pcre2_match_data_create_from_pattern(code.get(), nullptr));
  const std::unique_ptr<pcre2_match_context, Freed<pcre2_match_context_free>> limits(
      pcre2_match_context_create(nullptr));
  if (!match || !limits) throw std::bad_alloc();
  pcre2_set_match_limit(limits.get(), kMostSteps);
  pcre2_set_heap_limit(limits.get(), kMostKibibytes);
  const int found = pcre2_match(code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                                0, 0, match.get(), limits.get());
  if (found == PCRE2_ERROR_NOMATCH) return false;
  if (found < 0) {
    throw Error(ErrorCode::kInvalidInput, where, "the regular expression '{}' takes too long",
                printable(pattern));
  }
  return true;
}

}  // namespace halftone
