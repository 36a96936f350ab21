// Sizes that pictures of any shape are brought to: few, of about the same area, so that batches
// can be made of each.
#pragma once

#include <cstdint>
#include <vector>

namespace halftone {

struct PictureSize {
  int64_t width = 0, height = 0;
  auto operator<=>(const PictureSize&) const = default;
};

// Around resolution x resolution pixels, at most twice as wide as high or the other way round;
// sides are multiples of `multiple`, and of a sixteenth of the resolution where that is more.
std::vector<PictureSize> bucket_sizes(int64_t resolution, int64_t multiple);

// The one whose shape is nearest.
PictureSize nearest_bucket(const std::vector<PictureSize>& buckets, int64_t width, int64_t height);

}  // namespace halftone
