// Rounds a weight so that what rounding one input's column does to the output is made up for by
// the columns that come after it, as far as inputs are correlated (the method known as GPTQ or
// optimal brain quantization). Needs to know what the linear's inputs look like together.
#pragma once

#include <vector>

#include "halftone/base/error.h"
#include "halftone/kernels/kernels.h"
#include "halftone/tensor/quantized_tensor.h"

namespace halftone {

// Sums of x x^T over rows that a linear was given.
class InputMoments {
 public:
  // x [..., K], F32 or BF16; of very many rows some are taken.
  static constexpr int64_t kMostRows = 128;
  void add(const ConstView& x, const Kernels& kernels, Stream stream);

  int64_t size() const { return size_; }                    // K
  const std::vector<float>& sums() const { return sums_; }  // [K, K]
  // How the error of each column spreads over those after it; empty where the sums do not tell.
  // Computed when it is first asked for, once nothing is added any more.
  const std::vector<float>& spread(int threads) const;
  // What was summed before.
  void restore(int64_t size, std::vector<float> sums) {
    HT_ASSERT(static_cast<int64_t>(sums.size()) == size * size);
    size_ = size;
    sums_ = std::move(sums);
    spread_.clear();
  }

 private:
  int64_t size_ = 0;
  std::vector<float> sums_;
  mutable std::vector<float> spread_;
};

// weight [N, K] along its rows. Scales are chosen as the plain quantizer does, those of blocks when
// their turn comes. Of the two, what the moments say is better is returned: this, or plain
// rounding.
QuantizedTensor quantize_compensated(const Tensor& weight, const Format& format,
                                     const InputMoments& moments, const Kernels& kernels,
                                     Stream stream);

// The error that rounding leaves in the output, relative to the output: the square root of
// tr(D M D^T) / tr(W M W^T), where D is the rounding error and M the moments.
double output_error(const Tensor& weight, const QuantizedTensor& q, const InputMoments& moments,
                    const Kernels& kernels, Stream stream);

}  // namespace halftone
