#include "halftone/engine/tiles.h"

#include <algorithm>

#include "halftone/base/error.h"

namespace halftone {
namespace {

constexpr int64_t kUsualPixels = 512, kUsualOverlap = 128;

// The part of one item's latents that a tile covers.
Tensor cut_tile(const Tensor& latents, int64_t item, std::pair<int64_t, int64_t> at,
                std::pair<int64_t, int64_t> size) {
  const Shape& shape = latents.shape();
  Tensor tile = Tensor::empty(DType::kF32, {1, shape[1], size.first, size.second});
  const float* const from = latents.as<float>().data();
  float* to = tile.mutable_as<float>().data();
  for (int64_t c = 0; c < shape[1]; ++c) {
    for (int64_t y = 0; y < size.first; ++y) {
      const float* const row =
          from + ((item * shape[1] + c) * shape[2] + at.first + y) * shape[3] + at.second;
      to = std::copy_n(row, size.second, to);
    }
  }
  return tile;
}

}  // namespace

TileSize TileSize::usual(int64_t scale) {
  return {std::max<int64_t>(kUsualPixels / scale, 2), std::max<int64_t>(kUsualOverlap / scale, 1)};
}

TileRow tile_row(int64_t length, const TileSize& tile) {
  HT_ASSERT(tile.side > tile.overlap && tile.overlap >= 0 && length > 0);
  TileRow row{std::min(length, tile.side), {}};
  const int64_t step = tile.side - tile.overlap;
  for (int64_t start = 0; start + row.size < length; start += step) row.starts.push_back(start);
  row.starts.push_back(length - row.size);
  return row;
}

std::vector<std::vector<float>> tile_shares(int64_t length, const TileRow& row, int64_t scale) {
  const auto count = row.starts.size();
  const int64_t pixels = row.size * scale;
  std::vector<std::vector<float>> shares(count, std::vector<float>(static_cast<size_t>(pixels), 1));
  std::vector<double> sums(static_cast<size_t>(length * scale), 0);
  for (size_t t = 0; t < count; ++t) {
    const int64_t start = row.starts[t] * scale;
    const int64_t before = t == 0 ? 0 : row.starts[t - 1] * scale + pixels - start;
    const int64_t after = t + 1 == count ? 0 : start + pixels - row.starts[t + 1] * scale;
    for (int64_t p = 0; p < pixels; ++p) {
      // Rises linearly over what is shared with the tile before, and falls likewise.
      double share = 1;
      if (p < before) share = (static_cast<double>(p) + 0.5) / static_cast<double>(before);
      const int64_t left = pixels - p;
      if (left <= after) {
        share = std::min(share, (static_cast<double>(left) - 0.5) / static_cast<double>(after));
      }
      shares[t][static_cast<size_t>(p)] = static_cast<float>(share);
      sums[static_cast<size_t>(start + p)] += share;
    }
  }
  for (size_t t = 0; t < count; ++t) {
    for (int64_t p = 0; p < pixels; ++p) {
      float& share = shares[t][static_cast<size_t>(p)];
      share = static_cast<float>(share / sums[static_cast<size_t>(row.starts[t] * scale + p)]);
    }
  }
  return shares;
}

Tensor decode_tiles(const Tensor& latents, int64_t scale, const TileSize& tile,
                    const DecodeTile& decode) {
  const Shape& shape = latents.shape();
  const TileRow down = tile_row(shape[2], tile), across = tile_row(shape[3], tile);
  const auto down_shares = tile_shares(shape[2], down, scale);
  const auto across_shares = tile_shares(shape[3], across, scale);
  const int64_t height = shape[2] * scale, width = shape[3] * scale;
  const int64_t rows = down.size * scale, columns = across.size * scale;
  constexpr int64_t kColors = 3;
  Tensor image = Tensor::zeros(DType::kF32, {shape[0], kColors, height, width});
  float* const to = image.mutable_as<float>().data();
  for (int64_t item = 0; item < shape[0]; ++item) {
    for (size_t i = 0; i < down.starts.size(); ++i) {
      for (size_t j = 0; j < across.starts.size(); ++j) {
        const Tensor made = decode(
            cut_tile(latents, item, {down.starts[i], across.starts[j]}, {down.size, across.size}));
        HT_ASSERT(made.shape() == Shape({1, kColors, rows, columns}));
        const float* from = made.as<float>().data();
        for (int64_t c = 0; c < kColors; ++c) {
          for (int64_t y = 0; y < rows; ++y, from += columns) {
            float* const row =
                to + ((item * kColors + c) * height + down.starts[i] * scale + y) * width +
                across.starts[j] * scale;
            const float share = down_shares[i][static_cast<size_t>(y)];
            for (int64_t x = 0; x < columns; ++x) {
              row[x] += share * across_shares[j][static_cast<size_t>(x)] * from[x];
            }
          }
        }
      }
    }
  }
  return image;
}

}  // namespace halftone
