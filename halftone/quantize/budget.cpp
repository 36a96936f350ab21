#include "halftone/quantize/budget.h"

#include <cstdlib>

#include "halftone/base/error.h"
#include "halftone/base/text.h"

namespace halftone {

Budget automatic_budget(const Format& format) {
  // Somewhat above 0.99 and 0.999, so that other prompts than the certificate's are above it, too.
  constexpr double kCosine4 = 0.9905, kCosine8 = 0.9991;
  return {format.element_bits() == 4 ? kCosine4 : kCosine8, {}, true};
}

Budget parse_budget(const std::string& text, const Format& smallest) {
  if (text == "auto") return automatic_budget(smallest);
  const size_t equals = text.find('=');
  const std::string what = text.substr(0, equals);
  const std::string value = equals == std::string::npos ? "" : text.substr(equals + 1);
  if (what == "bytes") return {{}, parse_bytes(value, "budget"), false};
  char* end = nullptr;
  const double cosine = std::strtod(value.c_str(), &end);
  if (what != "cosine" || value.empty() || *end != '\0' || !(cosine > 0 && cosine < 1)) {
    throw Error(ErrorCode::kUsage, "budget",
                "'{}' is neither auto, cosine=C with C below 1, nor bytes=SIZE", printable(text));
  }
  return {cosine, {}, false};
}

std::string to_string(const Budget& budget) {
  if (budget.automatic) return "auto";
  if (budget.bytes) return fmt::format("bytes={}", *budget.bytes);
  return budget.cosine ? fmt::format("cosine={}", *budget.cosine) : "none";
}

}  // namespace halftone
