// Rounds a weight so that what rounding one input's column does to the output is made up for by
// the columns that come after it, as far as inputs are correlated (error_spread.h).
#pragma once

#include "halftone/quantize/error_spread.h"
#include "halftone/tensor/quantized_tensor.h"

namespace halftone {

// What is known of a linear's inputs, ready for rounding the weights that read them.
struct InputStatistics {
  InputStatistics(const InputMoments& of, int threads) : moments(of), spread(of, threads) {}
  const InputMoments& moments;
  ErrorSpread spread;
};

// weight [N, K] along its rows. Scales are chosen as the plain quantizer does, those of blocks when
// their turn comes. Of the two, what the moments say is better is returned: this, or plain
// rounding; of a weight with very many rows some tell. `kernels` are the CPU's.
QuantizedTensor quantize_compensated(const Tensor& weight, const Format& format,
                                     const InputStatistics& inputs, const Kernels& kernels,
                                     Stream stream);

// The error that rounding leaves in the output, relative to the output: the square root of
// tr(D M D^T) / tr(W M W^T), where D is the rounding error and M the moments.
double output_error(const Tensor& weight, const QuantizedTensor& q, const InputMoments& moments,
                    const Kernels& kernels, Stream stream);

}  // namespace halftone
