#include "halftone/kernels/cpu/fast/gemm.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>

#include "halftone/base/error.h"
#include "halftone/base/threads.h"
#include "halftone/kernels/kernels.h"

namespace halftone {

#if !defined(HALFTONE_DNNL)
int64_t library_code_bytes() { return int64_t{5} << 19; }  // zlib's windows and the like
#endif

}  // namespace halftone

namespace halftone::fast {
namespace {

// Small tiles: oneDNN multiplies operands where they lie.
constexpr int64_t kSmallRows = 128, kSmallCols = 256;
// Large ones: it packs them first, which is a few percent faster.
constexpr int64_t kLargeRows = 400, kLargeCols = 1024;
constexpr int64_t kEnoughTiles = 8;  // fewer large ones would leave threads without work

}  // namespace

void gemm(const Gemm& g) {
#if defined(HALFTONE_DNNL)
  onednn_gemm(g);
#else
  own_gemm(g);
#endif
}

#if !defined(HALFTONE_DNNL)
int64_t packed_bytes(int64_t, int64_t, int64_t) { return 0; }  // blocks that stay in a cache
#endif

Tiling tiling_of(int64_t m, int64_t n, int64_t rows_per_item) {
  const int64_t item = rows_per_item > 0 ? rows_per_item : m;
  // A power of two, so that threads get equal shares.
  const auto large = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(item / kLargeRows)));
  const bool is_large = large * pieces_of(n, kLargeCols) >= kEnoughTiles;
  // Equal tiles, none of them tiny: oneDNN has other ways for few rows.
  const int64_t down = is_large ? large : pieces_of(std::max<int64_t>(item, 1), kSmallRows);
  constexpr int64_t kStep = 16;
  const int64_t rows = pieces_of(pieces_of(std::max<int64_t>(item, 1), down), kStep) * kStep;
  return {item, rows, is_large ? kLargeCols : kSmallCols};
}

int64_t packed_bytes(int64_t m, int64_t n, int64_t k, const Tiling& tiling, int threads) {
  const int64_t rows = std::min(m, tiling.rows), cols = std::min(n, tiling.cols);
  if (rows <= 0 || cols <= 0) return 0;
  const int64_t tiles = pieces_of(m, rows) * pieces_of(n, cols);
  return std::min<int64_t>(std::max(threads, 1), tiles) * packed_bytes(rows, cols, k);
}

void gemm_in_tiles(const Gemm& g, const Tiling& tiling, int threads) {
  if (g.m <= 0 || g.n <= 0) return;
  const int64_t item = tiling.item, rows = tiling.rows, cols = tiling.cols;
  const int64_t per_item = pieces_of(item, rows), across = pieces_of(g.n, cols);
  const int64_t tiles = pieces_of(g.m, item) * per_item * across;
  require_memory_for_products(threads);
  parallel_for(threads, tiles, 1, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const int64_t down = t / across, j = t % across * cols;
      const int64_t i = down / per_item * item + down % per_item * rows;
      const int64_t stop = std::min(g.m, (down / per_item + 1) * item);
      Gemm tile = g;
      tile.m = std::min(rows, stop - i);
      tile.n = std::min(cols, g.n - j);
      tile.a += g.transpose_a ? i : i * g.lda;
      tile.b += g.transpose_b ? j * g.ldb : j;
      tile.c += i * g.ldc + j;
      gemm(tile);
    }
  });
}

void require_memory_for_products(int threads) {
  constexpr int64_t kOnce = 4 << 20, kPerThread = 2 << 20;
  const auto bytes = static_cast<size_t>(kOnce + std::max(threads, 1) * kPerThread);
  void* space = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (space == MAP_FAILED) {
    throw Error(ErrorCode::kOutOfMemory, "memory", "could not allocate {} bytes for a product",
                bytes);
  }
  ::munmap(space, bytes);
}

}  // namespace halftone::fast
