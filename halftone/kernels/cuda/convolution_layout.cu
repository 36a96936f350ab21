#include <algorithm>

#include "halftone/kernels/cuda/context.h"
#include "halftone/kernels/cuda/convolution_kernels.h"
#include "halftone/kernels/cuda/convolution_values.cuh"
#include "halftone/kernels/layouts.h"

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

struct WeightArgs {  // from one layout to another
  Values x;
  KernelLayout from;
  Results y;
  KernelLayout to;
  int64_t count;  // of y
};

// Threads follow y's memory, of [out, kh, kw, in].
__global__ void weight_to_channels_last(WeightArgs args) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= args.count) return;
  const int64_t c = i % args.to.in, v = i / args.to.in % args.to.width;
  const int64_t u = i / (args.to.in * args.to.width) % args.to.height;
  const int64_t o = i / (args.to.in * args.to.taps());
  const bool inside = o < args.from.out && c < args.from.in;
  args.y.store(i, inside ? args.x[args.from.at(o, c, u, v)] : 0.0f);
}

// Eight values each, which stay where they are.
__global__ void convert_weight(Values x, Results y, int64_t chunks) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= chunks) return;
  float v[kVector];
  load_values(x.data, x.dtype, i * kVector, v);
  store_values(y.data, y.dtype, i * kVector, v);
}

// Of [out, in, kh, kw].
__global__ void weight_to_order(WeightArgs args) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= args.count) return;
  const int64_t v = i % args.to.width, u = i / args.to.width % args.to.height;
  const int64_t c = i / args.to.taps() % args.to.in, o = i / (args.to.taps() * args.to.in);
  args.y.store(i, args.x[args.from.at(o, c, u, v)]);
}

template <class T>
__global__ void pad_channels_kernel(const T* x, T* y, PadChannelsArgs args) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= args.pixels * args.padded) return;
  const int64_t pixel = i / args.padded, c = i - pixel * args.padded;
  y[i] = c < args.channels ? x[pixel * args.channels + c] : T{0};
}

__global__ void sum_biases_kernel(Values bias, Values shift, BiasSizes sizes, float* y) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= sizes.items * sizes.padded) return;
  const int64_t b = i / sizes.padded, c = i - b * sizes.padded;
  float sum = 0;
  if (c < sizes.channels) {
    if (bias.data != nullptr) sum += bias[c];
    if (shift.data != nullptr) sum += shift[b * sizes.channels + c];
  }
  y[i] = sum;
}

struct Finish {
  Values x, bias, shift, addend;
  Results y;
  int64_t padded, channels, first, count;  // first: where the item of y begins
};

__global__ void finish_kernel(Finish p) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= p.count) return;
  const int64_t pixel = i / p.channels, c = i - pixel * p.channels;
  float sum = p.x[pixel * p.padded + c];
  if (p.bias.data != nullptr) sum += p.bias[c];
  if (p.shift.data != nullptr) sum += p.shift[p.first / p.count * p.channels + c];
  if (p.addend.data != nullptr) sum += p.addend[p.first + i];
  p.y.store(p.first + i, sum);
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

void channels_last_weight(const ConstView& x, const LastWeight& as, void* y, cudaStream_t stream) {
  const Shape shape{as.out, as.in, x.shape[2], x.shape[3]};
  if (shape.numel() == 0) return;
  const WeightArgs args{Values(x),
                        {x.shape, x.channels_last},
                        Results(View{y, as.dtype, shape}),
                        {shape, true},
                        shape.numel()};
  const bool in_place = x.channels_last || x.shape[2] * x.shape[3] == 1;
  if (in_place && shape == x.shape && args.count % kVector == 0 &&
      aligned_for(x.data, x.dtype, kVector) && aligned_for(y, as.dtype, kVector)) {
    const int64_t chunks = args.count / kVector;
    convert_weight<<<blocks_for(chunks, 256), 256, 0, stream>>>(args.x, args.y, chunks);
    HT_CUDA_LAUNCHED();
    return;
  }
  weight_to_channels_last<<<blocks_for(args.count, 256), 256, 0, stream>>>(args);
  HT_CUDA_LAUNCHED();
}

void weight_in_order(const void* x, const LastWeight& as, const View& y, cudaStream_t stream) {
  if (y.shape.numel() == 0) return;
  const Shape shape{as.out, as.in, y.shape[2], y.shape[3]};
  const WeightArgs args{Values(ConstView{x, as.dtype, shape}),
                        {shape, true},
                        Results(y),
                        {y.shape, false},
                        y.shape.numel()};
  weight_to_order<<<blocks_for(args.count, 256), 256, 0, stream>>>(args);
  HT_CUDA_LAUNCHED();
}

void floats_in_order(const ConstView& x, float* y, cudaStream_t stream) {
  if (x.shape.numel() == 0) return;
  const WeightArgs args{Values(x),
                        {x.shape, x.channels_last},
                        Results(View{y, DType::kF32, x.shape}),
                        {x.shape, false},
                        x.shape.numel()};
  weight_to_order<<<blocks_for(args.count, 256), 256, 0, stream>>>(args);
  HT_CUDA_LAUNCHED();
}

void pad_channels(const PadChannelsArgs& args, cudaStream_t stream) {
  const int64_t count = args.pixels * args.padded;
  if (count == 0) return;
  const unsigned blocks = blocks_for(count, 256);
  if (args.element_bytes == 2) {
    pad_channels_kernel<<<blocks, 256, 0, stream>>>(static_cast<const uint16_t*>(args.x),
                                                    static_cast<uint16_t*>(args.y), args);
  } else {
    pad_channels_kernel<<<blocks, 256, 0, stream>>>(static_cast<const uint32_t*>(args.x),
                                                    static_cast<uint32_t*>(args.y), args);
  }
  HT_CUDA_LAUNCHED();
}

void sum_biases(const ConstView& bias, const ConstView& shift, const BiasSizes& sizes, float* y,
                cudaStream_t stream) {
  const int64_t count = sizes.items * sizes.padded;
  if (count == 0) return;
  sum_biases_kernel<<<blocks_for(count, 256), 256, 0, stream>>>(Values(bias), Values(shift), sizes,
                                                                y);
  HT_CUDA_LAUNCHED();
}

void finish_convolution(const FinishArgs& args, cudaStream_t stream) {
  const Shape& shape = args.y.shape;
  const int64_t count = shape[1] * shape[2] * shape[3];
  if (count == 0) return;
  const Finish p{Values(ConstView{args.x, args.y.dtype, shape}),
                 Values(args.bias),
                 Values(args.shift),
                 Values(args.addend),
                 Results(args.y),
                 args.padded,
                 shape[3],
                 args.item * count,
                 count};
  finish_kernel<<<blocks_for(count, 256), 256, 0, stream>>>(p);
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
