#include "halftone/numerics/swizzle.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>

namespace halftone {
namespace {

TEST(Swizzle, KnownOffsets) {
  EXPECT_EQ(swizzled_scale_offset(0, 3, 96), 3);
  EXPECT_EQ(swizzled_scale_offset(1, 0, 96), 16);
  EXPECT_EQ(swizzled_scale_offset(32, 0, 96), 4);
  EXPECT_EQ(swizzled_scale_offset(64, 1, 96), 9);
  EXPECT_EQ(swizzled_scale_offset(127, 3, 96), 511);
  EXPECT_EQ(swizzled_scale_offset(0, 4, 96), 512);
  EXPECT_EQ(swizzled_scale_offset(128, 0, 96), 12288);
  EXPECT_EQ(swizzled_scale_offset(200, 95, 96), 24203);
  EXPECT_EQ(swizzled_scale_offset(130, 5, 6), 1569);
}

TEST(Swizzle, IsOneToOneWithinItsBytes) {
  for (const auto& [rows, cols] : {std::pair{1, 1}, {128, 4}, {130, 6}, {300, 97}}) {
    std::set<int64_t> seen;
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) {
        const int64_t offset = swizzled_scale_offset(r, c, cols);
        ASSERT_LT(offset, swizzled_scale_bytes(rows, cols));
        ASSERT_TRUE(seen.insert(offset).second);
      }
    }
  }
}

TEST(Swizzle, RoundTripsAndPadsWithZero) {
  const int64_t rows = 130, cols = 6;
  std::vector<uint8_t> linear(rows * cols);
  for (size_t i = 0; i < linear.size(); ++i) linear[i] = static_cast<uint8_t>(1 + i % 255);
  const auto swizzled = swizzle_scales(linear, rows, cols);
  EXPECT_EQ(swizzled.size(), 256u * 8u);
  EXPECT_EQ(swizzled[swizzled_scale_offset(129, 5, cols)], linear[129 * 6 + 5]);
  EXPECT_EQ(unswizzle_scales(swizzled, rows, cols), linear);
  const auto sum = [](const std::vector<uint8_t>& v) {
    return std::accumulate(v.begin(), v.end(), 0);
  };
  EXPECT_EQ(sum(swizzled), sum(linear));  // nothing but zeros was added
  EXPECT_TRUE(swizzle_scales({}, 0, 6).empty());
}

}  // namespace
}  // namespace halftone
