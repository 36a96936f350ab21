#include "halftone/training/buckets.h"

#include <algorithm>
#include <cmath>

#include "halftone/base/error.h"

namespace halftone {

std::vector<PictureSize> bucket_sizes(int64_t resolution, int64_t multiple) {
  constexpr int64_t kSteps = 16, kMostStretch = 2;
  if (resolution < multiple || resolution % multiple != 0) {
    throw Error(ErrorCode::kUsage, "resolution", "{} is no multiple of {}, as this model needs",
                resolution, multiple);
  }
  const int64_t step = multiple * std::max<int64_t>(1, resolution / (kSteps * multiple));
  std::vector<PictureSize> sizes = {{resolution, resolution}};
  for (int64_t width = step; width <= kMostStretch * resolution; width += step) {
    const int64_t height = resolution * resolution / width / step * step;
    if (height < step || width > kMostStretch * height || height > kMostStretch * width) continue;
    sizes.push_back({width, height});
  }
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  return sizes;
}

PictureSize nearest_bucket(const std::vector<PictureSize>& buckets, int64_t width, int64_t height) {
  const auto stretch = [](int64_t w, int64_t h) {
    return std::log(static_cast<double>(w) / static_cast<double>(h));
  };
  const double wanted = stretch(width, height);
  return *std::min_element(buckets.begin(), buckets.end(),
                           [&](const PictureSize& a, const PictureSize& b) {
                             const double x = std::abs(stretch(a.width, a.height) - wanted);
                             const double y = std::abs(stretch(b.width, b.height) - wanted);
                             return x != y ? x < y : a.width * a.height > b.width * b.height;
                           });
}

}  // namespace halftone
