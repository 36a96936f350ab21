// What the inputs of a linear look like together: sums of x x^T over rows that it was given.
#pragma once

#include <vector>

#include "halftone/base/error.h"
#include "halftone/kernels/kernels.h"

namespace halftone {

class InputMoments {
 public:
  // x [..., K] in the CPU's memory, F32 or BF16; of very many rows some are taken. Rows are
  // collected, and multiplied when there are enough of them: by this table, where its stream runs.
  static constexpr int64_t kMostRows = 128;
  static constexpr int64_t kMostCollected = 2048;
  // `scratch` takes products on their way to the sums, and is kept from one to the next: memory
  // that is new costs more than the sum.
  using Scratch = std::vector<float>;
  void add(const ConstView& x, const Kernels& kernels, Stream stream, Scratch& scratch);
  // Rows that were collected become part of the sums. When this is called decides about the order
  // of sums, and so about their last bits.
  void flush(const Kernels& kernels, Stream stream, Scratch& scratch);

  int64_t size() const { return size_; }  // K
  // [K, K]; nothing is collected.
  const std::vector<float>& sums() const {
    HT_ASSERT(rows_.empty());
    return sums_;
  }
  // What was summed before.
  void restore(int64_t size, std::vector<float> sums) {
    HT_ASSERT(static_cast<int64_t>(sums.size()) == size * size);
    size_ = size;
    sums_ = std::move(sums);
    rows_.clear();
  }

  // Bytes that moments of this width take while they are gathered.
  static int64_t bytes(int64_t width) {
    return (width + kMostCollected) * width * int64_t{sizeof(float)};
  }

 private:
  int64_t size_ = 0;
  std::vector<float> sums_;
  std::vector<float> rows_;  // [rows, K], to be added
};

// y = op(a) b in the CPU's memory. Operands are there as well; with a stream of another device they
// go there and back.
void multiply_floats(MatMulArgs args, const Kernels& kernels, Stream stream);

}  // namespace halftone
