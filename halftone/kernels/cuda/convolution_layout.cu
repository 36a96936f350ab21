#include <algorithm>

#include "halftone/kernels/cuda/context.h"
#include "halftone/kernels/cuda/convolution_kernels.h"
#include "halftone/kernels/cuda/convolution_values.cuh"

namespace halftone::cuda {
namespace {

constexpr int kTile = 64, kVector = 8, kThreads = 256;
constexpr int kPitch = kTile + 2;  // of a row in shared memory, so that columns spread over banks

union Vector {
  uint4 all;
  uint16_t each[kVector];
};

__global__ void __launch_bounds__(kThreads)
    transpose_tiles(TransposeArgs args, int64_t column_tiles) {
  __shared__ uint16_t tile[kTile * kPitch];
  const int64_t row0 = blockIdx.x / column_tiles * kTile,
                column0 = blockIdx.x % column_tiles * kTile;
  const auto* x = static_cast<const uint16_t*>(args.x) + blockIdx.y * args.rows * args.columns;
  auto* y = static_cast<uint16_t*>(args.y) + blockIdx.y * args.out_rows * args.out_columns;
  const bool vector_loads = args.columns % kVector == 0;
  const bool vector_stores = args.out_columns % kVector == 0;

  for (int i = static_cast<int>(threadIdx.x); i < kTile * kTile / kVector; i += kThreads) {
    const int r = i / (kTile / kVector), c = i % (kTile / kVector) * kVector;
    const int64_t row = row0 + r, column = column0 + c;
    Vector v;
    v.all = make_uint4(0, 0, 0, 0);
    if (row < args.rows) {
      const uint16_t* from = x + row * args.columns + column;
      if (vector_loads && column < args.columns) {
        v.all = *reinterpret_cast<const uint4*>(from);
      } else {
        for (int j = 0; j < kVector; ++j) {
          if (column + j < args.columns) v.each[j] = from[j];
        }
      }
    }
    for (int j = 0; j < kVector; ++j) tile[r * kPitch + c + j] = v.each[j];
  }
  __syncthreads();

  for (int i = static_cast<int>(threadIdx.x); i < kTile * kTile / kVector; i += kThreads) {
    const int c = i / (kTile / kVector), r = i % (kTile / kVector) * kVector;
    const int64_t row = column0 + c, column = row0 + r;  // of y
    if (row >= args.out_rows) continue;
    Vector v;
    for (int j = 0; j < kVector; ++j) v.each[j] = tile[(r + j) * kPitch + c];
    uint16_t* to = y + row * args.out_columns + column;
    if (vector_stores && column < args.out_columns) {
      *reinterpret_cast<uint4*>(to) = v.all;
    } else {
      for (int j = 0; j < kVector; ++j) {
        if (column + j < args.out_columns) to[j] = v.each[j];
      }
    }
  }
}

struct WeightArgs {
  Values x;
  bf16* y;
  int64_t out, in, taps, in_padded, count;  // taps = kh * kw
};

__global__ void weight_to_channels_last(WeightArgs args) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= args.count) return;
  const int64_t c = i % args.in_padded, tap = i / args.in_padded % args.taps;
  const int64_t o = i / (args.in_padded * args.taps);
  const bool inside = o < args.out && c < args.in;
  args.y[i] = to_bf16(inside ? args.x[(o * args.in + c) * args.taps + tap] : 0.0f);
}

__global__ void to_padded_floats(Values x, int64_t count, int64_t padded, float* y) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < padded) y[i] = i < count ? x[i] : 0.0f;
}

__global__ void add_bias(Results y, Values bias, int64_t channels, int64_t plane, int64_t count) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    const float sum = load_value(y.data, y.dtype, i) + bias[i / plane % channels];
    y.store(i, sum);
  }
}

}  // namespace

void transpose_bf16(const TransposeArgs& args, cudaStream_t stream) {
  if (args.batch * args.out_rows * args.out_columns == 0) return;
  const int64_t row_tiles = (std::max(args.rows, args.out_columns) + kTile - 1) / kTile;
  const int64_t column_tiles = (args.out_rows + kTile - 1) / kTile;
  const dim3 grid(static_cast<unsigned>(row_tiles * column_tiles),
                  static_cast<unsigned>(args.batch));
  transpose_tiles<<<grid, kThreads, 0, stream>>>(args, column_tiles);
  HT_CUDA_LAUNCHED();
}

void channels_last_weight(const ConstView& x, int64_t out_padded, int64_t in_padded, void* y,
                          cudaStream_t stream) {
  const int64_t taps = x.shape[2] * x.shape[3], count = out_padded * taps * in_padded;
  if (count == 0) return;
  weight_to_channels_last<<<blocks_for(count, 256), 256, 0, stream>>>(
      {Values(x), static_cast<bf16*>(y), x.shape[0], x.shape[1], taps, in_padded, count});
  HT_CUDA_LAUNCHED();
}

void padded_floats(const ConstView& x, int64_t padded, float* y, cudaStream_t stream) {
  if (padded == 0) return;
  const int64_t count = x.data == nullptr ? 0 : x.shape.numel();
  to_padded_floats<<<blocks_for(padded, 256), 256, 0, stream>>>(Values(x), count, padded, y);
  HT_CUDA_LAUNCHED();
}

void add_channel_bias(const View& y, const ConstView& bias, cudaStream_t stream) {
  const int64_t count = y.shape.numel();
  if (count == 0) return;
  const unsigned blocks = std::min(blocks_for(count, 256), 16384u);
  add_bias<<<blocks, 256, 0, stream>>>(Results(y), Values(bias), y.shape[1],
                                       y.shape[2] * y.shape[3], count);
  HT_CUDA_LAUNCHED();
}

}  // namespace halftone::cuda
