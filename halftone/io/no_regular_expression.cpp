#include "halftone/base/error.h"
#include "halftone/io/regular_expression.h"

namespace halftone {

bool full_match(const std::string& pattern, std::string_view, const std::string& where) {
  throw Error(ErrorCode::kUnsupported, where,
              "the regular expression '{}' needs a build with PCRE2 (HALFTONE_TOKENIZER)",
              printable(pattern));
}

}  // namespace halftone
