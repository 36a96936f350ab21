// What many measurements amount to.
#pragma once

#include <algorithm>
#include <vector>

namespace halftone {

// Over many values; for cosines, SSIM and PSNR less is worse, for errors more is.
struct Spread {
  double mean = 0, median = 0;
  double tail = 0;  // the value that 5% are worse than
  double worst = 0;

  enum class Worse { kSmaller, kLarger };
  static Spread of(std::vector<double> values, Worse worse) {
    if (values.empty()) return {};
    Spread s;
    for (const double v : values) s.mean += v / static_cast<double>(values.size());
    std::sort(values.begin(), values.end());
    s.median = values[values.size() / 2];
    if (worse == Worse::kLarger) std::reverse(values.begin(), values.end());
    s.worst = values[0];
    s.tail = values[values.size() / 20];
    return s;
  }
};

}  // namespace halftone
