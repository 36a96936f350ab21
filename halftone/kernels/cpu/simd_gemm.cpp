// The float product for each instruction set (fast/gemm.h), for builds without oneDNN. Operands are
// packed into panels that lie as the innermost loop reads them, a block of the contraction at a
// time. Each value is summed in the order of k, wherever it lies in the result.
#include <algorithm>
#include <memory>

#include "halftone/kernels/cpu/fast/gemm.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "halftone/kernels/cpu/simd_gemm.cpp"
#include "hwy/foreach_target.h"
//
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace halftone::simd::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;
using VF = hn::Vec<DF>;

// Twelve sums that do not wait for each other, two vectors of b and one of a: sixteen registers.
constexpr int64_t kTileRows = 6, kTileVectors = 2;
// What is packed stays in the second-level cache, and a panel of b in the first. Small: every
// thread has its own, which no plan of memory knows of.
constexpr int64_t kBlockRows = 96, kBlockDepth = 128, kBlockCols = 256;

HWY_INLINE int64_t lanes() { return static_cast<int64_t>(hn::Lanes(DF())); }
HWY_INLINE int64_t tile_cols() { return kTileVectors * lanes(); }
HWY_INLINE int64_t round_up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

// Rows [i, i + rows) and the contraction [k, k + depth) of op(a): kTileRows at a time, those of one
// k together; zeros where there is no row.
void pack_a(const fast::Gemm& g, int64_t i, int64_t rows, int64_t k, int64_t depth, float* to) {
  const int64_t down = g.transpose_a ? 1 : g.lda, along = g.transpose_a ? g.lda : 1;
  for (int64_t first = 0; first < rows; first += kTileRows) {
    const int64_t count = std::min(kTileRows, rows - first);
    const float* from = g.a + (i + first) * down + k * along;
    for (int64_t p = 0; p < depth; ++p, to += kTileRows) {
      for (int64_t r = 0; r < count; ++r) to[r] = from[r * down + p * along];
      for (int64_t r = count; r < kTileRows; ++r) to[r] = 0;
    }
  }
}

// The same of op(b)'s columns, tile_cols() at a time.
void pack_b(const fast::Gemm& g, int64_t j, int64_t cols, int64_t k, int64_t depth, float* to) {
  const int64_t across = g.transpose_b ? g.ldb : 1, along = g.transpose_b ? 1 : g.ldb;
  const int64_t width = tile_cols();
  for (int64_t first = 0; first < cols; first += width) {
    const int64_t count = std::min(width, cols - first);
    const float* from = g.b + (j + first) * across + k * along;
    if (across == 1) {
      for (int64_t p = 0; p < depth; ++p) {
        std::copy_n(from + p * along, count, to + p * width);
        std::fill_n(to + p * width + count, width - count, 0.0f);
      }
    } else {
      for (int64_t c = 0; c < count; ++c) {
        for (int64_t p = 0; p < depth; ++p) to[p * width + c] = from[c * across + p];
      }
      for (int64_t c = count; c < width; ++c) {
        for (int64_t p = 0; p < depth; ++p) to[p * width + c] = 0;
      }
    }
    to += depth * width;
  }
}

// Where a tile of the result goes, and what becomes of what is there.
struct Tile {
  float* c;
  int64_t stride, rows, cols;
  float alpha, beta;
};

HWY_INLINE void store(const VF (&sums)[kTileRows][kTileVectors], const Tile& t) {
  const DF d;
  const VF alpha = hn::Set(d, t.alpha), beta = hn::Set(d, t.beta);
  const bool adds = t.beta != 0;  // otherwise nothing is read, which may be NaN
  if (t.rows == kTileRows && t.cols == tile_cols()) {
    for (int64_t r = 0; r < kTileRows; ++r) {
      for (int64_t v = 0; v < kTileVectors; ++v) {
        float* to = t.c + r * t.stride + v * lanes();
        const VF y = hn::Mul(alpha, sums[r][v]);
        hn::StoreU(adds ? hn::Add(y, hn::Mul(beta, hn::LoadU(d, to))) : y, d, to);
      }
    }
    return;
  }
  // By indices that are constants: sums that are indexed by others would not stay in registers.
  constexpr int64_t kWidest = kTileVectors * 16;
  alignas(64) float tile[kTileRows][kWidest];
  for (int64_t r = 0; r < kTileRows; ++r) {
    for (int64_t v = 0; v < kTileVectors; ++v) {
      hn::Store(hn::Mul(alpha, sums[r][v]), d, tile[r] + v * lanes());
    }
  }
  for (int64_t r = 0; r < t.rows; ++r) {
    float* to = t.c + r * t.stride;
    for (int64_t j = 0; j < t.cols; ++j) to[j] = adds ? tile[r][j] + t.beta * to[j] : tile[r][j];
  }
}

HWY_INLINE void multiply_tile(const float* a, const float* b, int64_t depth, const Tile& t) {
  const DF d;
  VF sums[kTileRows][kTileVectors];
  for (auto& row : sums) {
    for (VF& sum : row) sum = hn::Zero(d);
  }
  for (int64_t p = 0; p < depth; ++p) {
    VF x[kTileVectors];
    for (int64_t v = 0; v < kTileVectors; ++v) x[v] = hn::LoadU(d, b + v * lanes());
    for (int64_t r = 0; r < kTileRows; ++r) {
      const VF y = hn::Set(d, a[r]);
      for (int64_t v = 0; v < kTileVectors; ++v) sums[r][v] = hn::MulAdd(y, x[v], sums[r][v]);
    }
    a += kTileRows;
    b += tile_cols();
  }
  store(sums, t);
}

void MultiplyMatrices(const fast::Gemm& g) {
  const int64_t depth_of = std::min(g.k, kBlockDepth);
  const int64_t rows_of = round_up(std::min(g.m, kBlockRows), kTileRows);
  const int64_t cols_of = round_up(std::min(g.n, kBlockCols), tile_cols());
  const auto space =
      std::make_unique_for_overwrite<float[]>(static_cast<size_t>(depth_of * (rows_of + cols_of)));
  float *packed_a = space.get(), *packed_b = packed_a + depth_of * rows_of;
  for (int64_t j = 0; j < g.n; j += kBlockCols) {
    const int64_t cols = std::min(kBlockCols, g.n - j);
    for (int64_t k = 0; k < g.k; k += kBlockDepth) {
      const int64_t depth = std::min(kBlockDepth, g.k - k);
      pack_b(g, j, cols, k, depth, packed_b);
      for (int64_t i = 0; i < g.m; i += kBlockRows) {
        const int64_t rows = std::min(kBlockRows, g.m - i);
        pack_a(g, i, rows, k, depth, packed_a);
        for (int64_t across = 0; across < cols; across += tile_cols()) {
          for (int64_t down = 0; down < rows; down += kTileRows) {
            multiply_tile(
                packed_a + down * depth, packed_b + across * depth, depth,
                {g.c + (i + down) * g.ldc + j + across, g.ldc, std::min(kTileRows, rows - down),
                 std::min(tile_cols(), cols - across), g.alpha, k == 0 ? g.beta : 1.0f});
          }
        }
      }
    }
  }
}

}  // namespace halftone::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace halftone {
namespace simd {
HWY_EXPORT(MultiplyMatrices);
}  // namespace simd
namespace fast {

using namespace simd;  // NOLINT(google-build-using-namespace): the tables of HWY_EXPORT

void own_gemm(const Gemm& g) {
  if (g.k > 0) return HWY_DYNAMIC_DISPATCH(MultiplyMatrices)(g);
  for (int64_t i = 0; i < g.m; ++i) {
    for (int64_t j = 0; j < g.n; ++j) {
      float& to = g.c[i * g.ldc + j];
      to = g.beta == 0 ? 0 : g.beta * to;
    }
  }
}

}  // namespace fast
}  // namespace halftone
#endif
