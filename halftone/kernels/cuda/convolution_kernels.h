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

// A weight [out, kh, kw, in], padded with zeros, from x [out, in, kh, kw], however that lies.
struct LastWeight {
  int64_t out = 0, in = 0;  // padded
  DType dtype = DType::kBF16;
};
void channels_last_weight(const ConstView& x, const LastWeight& as, void* y, cudaStream_t stream);
// The way back: y [out, in, kh, kw], in that order, from such a weight.
void weight_in_order(const void* x, const LastWeight& as, const View& y, cudaStream_t stream);
// A weight [out, in, kh, kw] in that order, in float, however it lies.
void floats_in_order(const ConstView& x, float* y, cudaStream_t stream);
// y [padded] in float from x [n], zero where padded or where there is no x.
void padded_floats(const ConstView& x, int64_t padded, float* y, cudaStream_t stream);

// y [pixels, padded] from x [pixels, channels], zero where padded.
struct PadChannelsArgs {
  const void* x = nullptr;
  void* y = nullptr;
  int64_t pixels = 0, channels = 0, padded = 0;
  int64_t element_bytes = 2;  // or 4
};
void pad_channels(const PadChannelsArgs& args, cudaStream_t stream);

// y [items, padded] = bias [channels] + shift [items, channels], zero where padded; either may be
// missing.
struct BiasSizes {
  int64_t items = 0, channels = 0, padded = 0;
};
void sum_biases(const ConstView& bias, const ConstView& shift, const BiasSizes& sizes, float* y,
                cudaStream_t stream);

// What a plan has left to do for an item of y [B, H, W, O]: x [H, W, padded] of y's dtype, which
// may be that item itself, plus bias [O], shift [B, O] and addend [B, H, W, O], each where it is
// there.
struct FinishArgs {
  const void* x = nullptr;
  int64_t padded = 0;
  View y;
  int64_t item = 0;
  ConstView bias, shift, addend;
};
void finish_convolution(const FinishArgs& args, cudaStream_t stream);

// y [B, O, H, W] += bias [O].
void add_channel_bias(const View& y, const ConstView& bias, cudaStream_t stream);

}  // namespace halftone::cuda
