// Decoding latents in overlapping tiles: the memory of a tile rather than of the whole picture.
// Where a codec looks at everything at once (norms over all positions, attention), a tile sees less
// than the whole did, and a picture differs a little from the one that is decoded whole.
#pragma once

#include <functional>
#include <vector>

#include "halftone/tensor/tensor.h"

namespace halftone {

// In positions of latents.
struct TileSize {
  int64_t side = 64;     // of a tile, each way
  int64_t overlap = 16;  // with the next one, at least; over it one fades into the other
  // Usual ones for a codec of so many pixels per latent: 512 pixels that share 128.
  static TileSize usual(int64_t scale);
  bool operator==(const TileSize&) const = default;
};

// Tiles along one dimension. All are of one size, so that one program decodes them.
struct TileRow {
  int64_t size = 0;             // of each
  std::vector<int64_t> starts;  // ascending; the last one ends where the dimension does
};
TileRow tile_row(int64_t length, const TileSize& tile);

// Shares of the tiles in `length * scale` pixels: one row for each tile, over the pixels of that
// tile. They add up to 1 everywhere.
std::vector<std::vector<float>> tile_shares(int64_t length, const TileRow& row, int64_t scale);

// Latents F32 [B, C, h, w] -> pictures F32 [B, 3, h * scale, w * scale]. `decode` is given tiles
// [1, C, th, tw] one after the other, always in the same order.
using DecodeTile = std::function<Tensor(const Tensor& latents)>;
Tensor decode_tiles(const Tensor& latents, int64_t scale, const TileSize& tile,
                    const DecodeTile& decode);

}  // namespace halftone
