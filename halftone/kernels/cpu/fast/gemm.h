// The float matrix product, row-major: oneDNN's where the build has it, or our own.
#pragma once

#include <cstdint>

namespace halftone::fast {

inline int64_t pieces_of(int64_t count, int64_t size) { return (count + size - 1) / size; }

// c [m, n] = alpha op(a) op(b) + beta c; ld* are elements from one row to the next.
struct Gemm {
  int64_t m, n, k;
  const float* a;
  int64_t lda;
  const float* b;
  int64_t ldb;
  float* c;
  int64_t ldc;
  bool transpose_a = false, transpose_b = true;
  float alpha = 1, beta = 0;
};

// On the calling thread alone.
void gemm(const Gemm& g);
void onednn_gemm(const Gemm& g);  // where the build has oneDNN
void own_gemm(const Gemm& g);

// How a product is cut into tiles that are dealt to threads: by the rows of one item of a batch and
// by n, so that a value's bits depend neither on the number of threads, which oneDNN would cut the
// problem by, nor on the batch.
struct Tiling {
  int64_t item;        // rows
  int64_t rows, cols;  // of a tile; those at the end of an item or a row are smaller
};
Tiling tiling_of(int64_t m, int64_t n, int64_t rows_per_item);

// The product, tile by tile. Where it is done in several calls, each for some columns, all but the
// last have a multiple of the tile's.
void gemm_in_tiles(const Gemm& g, const Tiling& tiling, int threads);

// What gemm packs operands into, of memory of its own: at most so much while a thread is inside of
// it, or threads are inside of gemm_in_tiles.
int64_t packed_bytes(int64_t m, int64_t n, int64_t k);
int64_t packed_bytes(int64_t m, int64_t n, int64_t k, const Tiling& tiling, int threads);

// Throws where the process cannot get as much more memory as products take while they run (packed
// operands; oneDNN's generated code). oneDNN does not look whether it got all of it.
void require_memory_for_products(int threads);

}  // namespace halftone::fast
