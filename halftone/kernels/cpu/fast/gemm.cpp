#include "halftone/kernels/cpu/fast/gemm.h"

#include <dnnl.h>
#include <sys/mman.h>

#include "halftone/base/error.h"
#include "halftone/base/threads.h"

namespace halftone::fast {
namespace {

// Large tiles are the fastest, by a few percent, where an item has so many rows that every thread
// finds one.
struct Tile {
  int64_t rows, cols;
};
constexpr Tile kLarge{512, 1024}, kSmall{128, 256};
constexpr int64_t kManyRows = 4096;

// The rows of an item in equal tiles, none of them tiny: oneDNN has other ways for few rows.
int64_t tile_rows(int64_t rows, int64_t most) {
  constexpr int64_t kStep = 16;
  const int64_t tiles = (rows + most - 1) / most;
  return ((rows + tiles - 1) / tiles + kStep - 1) / kStep * kStep;
}

}  // namespace

void gemm(const Gemm& g) {
  const ThreadLimit alone(1);
  const dnnl_status_t status =
      dnnl_sgemm(g.transpose_a ? 'T' : 'N', g.transpose_b ? 'T' : 'N', g.m, g.n, g.k, g.alpha, g.a,
                 g.lda, g.b, g.ldb, g.beta, g.c, g.ldc);
  if (status == dnnl_success) return;
  throw Error(status == dnnl_out_of_memory ? ErrorCode::kOutOfMemory : ErrorCode::kUnsupported,
              "product", "oneDNN did not multiply [{}, {}] by [{}, {}]: status {}", g.m, g.k, g.k,
              g.n, static_cast<int>(status));
}

void gemm_in_tiles(const Gemm& g, int64_t rows_per_item, int threads) {
  if (g.m <= 0 || g.n <= 0) return;
  const int64_t item = rows_per_item > 0 ? rows_per_item : g.m;
  const Tile most = item >= kManyRows ? kLarge : kSmall;
  const int64_t rows = tile_rows(item, most.rows), cols = std::min(most.cols, g.n);
  const int64_t per_item = (item + rows - 1) / rows, across = (g.n + cols - 1) / cols;
  const int64_t tiles = (g.m + item - 1) / item * per_item * across;
  require_memory_for_onednn(threads);
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

void require_memory_for_onednn(int threads) {
  constexpr int64_t kOnce = 8 << 20, kPerThread = 2 << 20;
  const auto bytes = static_cast<size_t>(kOnce + std::max(threads, 1) * kPerThread);
  void* space = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (space == MAP_FAILED) {
    throw Error(ErrorCode::kOutOfMemory, "memory", "could not allocate {} bytes for oneDNN", bytes);
  }
  ::munmap(space, bytes);
}

}  // namespace halftone::fast
