// What a convolution needs besides cuDNN: other layouts for its tensor cores, and plain kernels for
// what it refuses and for gradients. Sums are in float, in an order that is always the same.
#pragma once

#include <cuda_runtime.h>

#include "halftone/kernels/op_args.h"

namespace halftone::cuda {

void plain_conv2d(const ConvArgs& args, cudaStream_t stream);
void plain_conv2d_input_grad(const ConvInputGradArgs& args, cudaStream_t stream);
void plain_conv2d_weight_grad(const ConvWeightGradArgs& args, cudaStream_t stream);

// y [batch, out_rows, out_columns] is x [batch, rows, columns] with every item transposed, of
// BF16. Only the first out_rows <= columns columns are written; what of out_columns is beyond rows
// is zero. Both start at a multiple of 16 bytes.
struct TransposeArgs {
  const void* x = nullptr;
  void* y = nullptr;
  int64_t batch = 0, rows = 0, columns = 0, out_rows = 0, out_columns = 0;
};
void transpose_bf16(const TransposeArgs& args, cudaStream_t stream);

// y [out_padded, kh, kw, in_padded] in BF16 from x [out, in, kh, kw], zero where padded.
void channels_last_weight(const ConstView& x, int64_t out_padded, int64_t in_padded, void* y,
                          cudaStream_t stream);
// y [padded] in float from x [n], zero where padded or where there is no x.
void padded_floats(const ConstView& x, int64_t padded, float* y, cudaStream_t stream);

// y [B, O, H, W] += bias [O].
void add_channel_bias(const View& y, const ConstView& bias, cudaStream_t stream);

}  // namespace halftone::cuda
