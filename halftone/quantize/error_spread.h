// How columns of a weight make up for the rounding of those before them, as moments of its inputs
// say.
#pragma once

#include <vector>

#include "halftone/quantize/input_moments.h"

namespace halftone {

// With moments M = U D U^T, U having a diagonal of ones above zeros, the rounding errors d of a row
// cost d M d^T = sum over k of D_k (d_k + sum over j < k of d_j U_jk)^2. Each term is smallest if
// column k is rounded from its weight plus the sum over j < k of d_j U_jk: the method known as
// LDLQ, GPTQ or optimal brain quantization. This holds U, in blocks of columns.
class ErrorSpread {
 public:
  static constexpr int64_t kBlock = 128;

  // Empty where the moments do not tell.
  ErrorSpread() = default;
  ErrorSpread(const InputMoments& moments, int threads);

  bool empty() const { return blocks_.empty(); }
  int64_t size() const { return size_; }
  // Columns [first, first + width) and what they do to themselves and to those after them.
  struct Block {
    int64_t first = 0, width = 0, after = 0;  // columns after the block
    std::vector<float> own;                   // [width, width]
    std::vector<float> rest;                  // [width, after]
  };
  const std::vector<Block>& blocks() const { return blocks_; }

  // Bytes that it takes to make one of this width, beside the moments.
  static int64_t bytes(int64_t width) {
    return width * width * static_cast<int64_t>(sizeof(double) + sizeof(float));
  }

 private:
  int64_t size_ = 0;
  std::vector<Block> blocks_;
};

}  // namespace halftone
