// What formats may cost a model: a cosine to keep, or bytes to fit into.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "halftone/numerics/format.h"

namespace halftone {

// What a choice may cost. Without either, the fewest bytes whatever they do.
struct Budget {
  std::optional<double> cosine;  // at least, the mean over calibration points
  std::optional<int64_t> bytes;  // at most, of the linears' weights
  bool automatic = false;        // a cosine that nobody asked for by number
};

// What a format can be expected to hold.
Budget automatic_budget(const Format& format);

// "cosine=0.998", "bytes=12M" or "auto", that of `smallest`; otherwise an Error that names the
// field, budget.
Budget parse_budget(const std::string& text, const Format& smallest);

std::string to_string(const Budget& budget);  // "cosine=0.998", "bytes=12000000" or "auto"

}  // namespace halftone
