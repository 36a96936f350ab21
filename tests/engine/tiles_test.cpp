// Tiles: where they lie, how they fade into each other, and what becomes of a picture.
#include "halftone/engine/tiles.h"

#include <gtest/gtest.h>

#include "tests/support/run_graph.h"

namespace halftone {
namespace {

TEST(Tiles, CoverEverythingAndShareAtLeastTheOverlap) {
  for (const int64_t length : {1, 5, 8, 9, 13, 14, 31, 64, 100}) {
    const TileSize tile{8, 3};
    const TileRow row = tile_row(length, tile);
    EXPECT_EQ(row.size, std::min<int64_t>(length, 8));
    EXPECT_EQ(row.starts.front(), 0);
    EXPECT_EQ(row.starts.back() + row.size, length);
    for (size_t t = 1; t < row.starts.size(); ++t) {
      EXPECT_GT(row.starts[t], row.starts[t - 1]);
      EXPECT_GE(row.starts[t - 1] + row.size - row.starts[t], 3);
    }
    if (length <= 8) {
      EXPECT_EQ(row.starts.size(), 1u);
    }
  }
}

TEST(Tiles, SharesAddUpToOneAndFade) {
  for (const int64_t length : {8, 11, 13, 20}) {
    const TileRow row = tile_row(length, {8, 3});
    const auto shares = tile_shares(length, row, 2);
    std::vector<double> sums(static_cast<size_t>(2 * length), 0);
    for (size_t t = 0; t < shares.size(); ++t) {
      for (size_t p = 0; p < shares[t].size(); ++p) {
        EXPECT_GT(shares[t][p], 0);
        sums[static_cast<size_t>(2 * row.starts[t]) + p] += shares[t][p];
      }
    }
    for (const double sum : sums) EXPECT_NEAR(sum, 1, 1e-6);
  }
  // Two tiles that share 3 positions, 6 pixels: the first one's share falls in equal steps.
  const auto shares = tile_shares(13, tile_row(13, {8, 3}), 2);
  for (size_t p = 0; p < 6; ++p) {
    EXPECT_NEAR(shares[0][10 + p], 1 - (static_cast<double>(p) + 0.5) / 6, 1e-6);
  }
}

// A decoder that looks at one position at a time gives the same picture in tiles.
TEST(Tiles, WhatLooksAtOnePlaceIsTheSameInTiles) {
  constexpr int64_t kScale = 2;
  const auto decode = [](const Tensor& latents) {
    const Shape& s = latents.shape();
    Tensor image = Tensor::empty(DType::kF32, {s[0], 3, kScale * s[2], kScale * s[3]});
    float* to = image.mutable_as<float>().data();
    for (int64_t b = 0; b < s[0]; ++b) {
      for (int64_t c = 0; c < 3; ++c) {
        for (int64_t y = 0; y < kScale * s[2]; ++y) {
          for (int64_t x = 0; x < kScale * s[3]; ++x) {
            const int64_t at = ((b * s[1] + c % s[1]) * s[2] + y / kScale) * s[3] + x / kScale;
            *to++ = 0.5f * latents.as<float>()[static_cast<size_t>(at)] + static_cast<float>(c);
          }
        }
      }
    }
    return image;
  };
  Tensor latents = Tensor::empty(DType::kF32, {2, 4, 13, 21});
  for (int64_t i = 0; i < latents.numel(); ++i) {
    latents.mutable_as<float>()[static_cast<size_t>(i)] = static_cast<float>((i * 37) % 101) / 50;
  }
  int tiles = 0;
  const Tensor image = decode_tiles(latents, kScale, {8, 3}, [&](const Tensor& tile) {
    EXPECT_EQ(tile.shape(), Shape({1, 4, 8, 8}));
    ++tiles;
    return decode(tile);
  });
  EXPECT_EQ(tiles, 2 * 2 * 4);
  const auto whole = test::floats(decode(latents)), made = test::floats(image);
  ASSERT_EQ(image.shape(), Shape({2, 3, 26, 42}));
  for (size_t i = 0; i < whole.size(); ++i) ASSERT_NEAR(made[i], whole[i], 1e-5) << i;
}

}  // namespace
}  // namespace halftone
