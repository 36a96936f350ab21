#include "halftone/kernels/cuda/elements.cuh"
#include "halftone/kernels/cuda/product_kernels.h"
#include "halftone/numerics/gelu.h"
#include "halftone/numerics/swizzle.h"

namespace halftone::cuda {
namespace {

constexpr int kWarp = 32, kWarpsPerBlock = 8;

struct Dots {
  const void *a, *b, *bias, *addend;
  void* y;
  DType a_type, b_type, bias_type, y_type;  // an addend's is y's
  int64_t m, n, k;
  bool gelu;
};

// A tile of 64 x 64 through shared memory; 16 bytes a thread on either side where they are aligned.
constexpr int kTile = 64, kPiece = 16;
__global__ void transpose_kernel(const uint8_t* x, int64_t rows, int64_t cols, bool aligned,
                                 uint8_t* y) {
  __shared__ __align__(16) uint8_t tile[kTile][kTile + 4];
  const int64_t r0 = int64_t{blockIdx.y} * kTile, c0 = int64_t{blockIdx.x} * kTile;
  const int line = static_cast<int>(threadIdx.x) / (kTile / kPiece);
  const int first = static_cast<int>(threadIdx.x) % (kTile / kPiece) * kPiece;
  const int64_t row = r0 + line, col = c0 + first;
  if (row < rows) {
    if (aligned && col + kPiece <= cols) {
      const uint4 piece = *reinterpret_cast<const uint4*>(x + row * cols + col);
      const uint32_t words[4] = {piece.x, piece.y, piece.z, piece.w};
#pragma unroll
      for (int w = 0; w < 4; ++w)
        *reinterpret_cast<uint32_t*>(&tile[line][first + 4 * w]) = words[w];
    } else {
      for (int i = 0; i < kPiece && col + i < cols; ++i)
        tile[line][first + i] = x[row * cols + col + i];
    }
  }
  __syncthreads();
  const int64_t to_row = c0 + line, to_col = r0 + first;
  if (to_row >= cols) return;
  if (aligned && to_col + kPiece <= rows) {
    uint32_t words[4];
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      words[w] = 0;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        words[w] |= static_cast<uint32_t>(tile[first + 4 * w + i][line]) << (8 * i);
      }
    }
    *reinterpret_cast<uint4*>(y + to_row * rows + to_col) =
        make_uint4(words[0], words[1], words[2], words[3]);
    return;
  }
  for (int i = 0; i < kPiece && to_col + i < rows; ++i) {
    y[to_row * rows + to_col + i] = tile[first + i][line];
  }
}

// A warp per output; lanes stride over k, so a row's sum does not depend on the other rows.
__global__ void dots_kernel(const Dots p) {
  const int64_t n = blockIdx.x * int64_t{kWarpsPerBlock} + threadIdx.y;
  const int64_t m = blockIdx.y;
  if (n >= p.n) return;
  float sum = 0;
  for (int64_t k = threadIdx.x; k < p.k; k += kWarp) {
    sum = fmaf(load_value(p.a, p.a_type, m * p.k + k), load_value(p.b, p.b_type, n * p.k + k), sum);
  }
  for (int step = kWarp / 2; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  if (threadIdx.x != 0) return;
  if (p.bias != nullptr) sum += load_value(p.bias, p.bias_type, n);
  if (p.addend != nullptr) sum += load_value(p.addend, p.y_type, m * p.n + n);
  store_value(p.y, p.y_type, m * p.n + n, p.gelu ? gelu(sum) : sum);
}

// The same with k a multiple of 8: eight values at a time.
template <class A, class B>
__global__ void wide_dots_kernel(const Dots p) {
  const int64_t n = blockIdx.x * int64_t{kWarpsPerBlock} + threadIdx.y;
  const int64_t m = blockIdx.y;
  if (n >= p.n) return;
  const A* a = static_cast<const A*>(p.a) + m * p.k;
  const B* b = static_cast<const B*>(p.b) + n * p.k;
  float sum = 0;
  for (int64_t k = threadIdx.x * 8; k < p.k; k += kWarp * 8) {
    float x[8], y[8];
    load_values(a + k, x);
    load_values(b + k, y);
#pragma unroll
    for (int i = 0; i < 8; ++i) sum = fmaf(x[i], y[i], sum);
  }
  for (int step = kWarp / 2; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  if (threadIdx.x != 0) return;
  if (p.bias != nullptr) sum += load_value(p.bias, p.bias_type, n);
  if (p.addend != nullptr) sum += load_value(p.addend, p.y_type, m * p.n + n);
  store_value(p.y, p.y_type, m * p.n + n, p.gelu ? gelu(sum) : sum);
}

using DotsKernel = void (*)(Dots);
DotsKernel dots_kernel_for(const Dots& p) {
  const auto simple = [](DType t) { return t == DType::kF32 || t == DType::kBF16; };
  if (p.k % 8 != 0 || !simple(p.a_type) || !simple(p.b_type)) return dots_kernel;
  if (p.a_type == DType::kF32) {
    return p.b_type == DType::kF32 ? wide_dots_kernel<float, float> : wide_dots_kernel<float, bf16>;
  }
  return p.b_type == DType::kF32 ? wide_dots_kernel<bf16, float> : wide_dots_kernel<bf16, bf16>;
}

__global__ void widen_kernel(const void* x, DType dtype, int64_t count, float* y) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    y[i] = load_value(x, dtype, i);
  }
}

__global__ void split_kernel(const float* x, int64_t count, uint16_t* y, int64_t stride) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = thread_index(); i < count; i += step) {
    float rest = x[i];
#pragma unroll
    for (int part = 0; part < 3; ++part) {
      // The upper half of the bits: towards zero, so that nothing overflows and the rest is exact.
      const uint32_t bits = bit_cast<uint32_t>(rest);
      y[part * stride + i] = static_cast<uint16_t>(bits >> 16 | (isnan(rest) ? 0x40u : 0u));
      rest = isfinite(rest) ? rest - bit_cast<float>(bits & 0xFFFF0000u) : 0.0f;
    }
  }
}

__global__ void round_kernel(const void* x, DType dtype, int64_t count, bf16* y) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    y[i] = to_bf16(load_value(x, dtype, i));
  }
}

__global__ void finish_kernel(const float* sums, const float* row_scales,
                              const float* column_scales, const void* bias, DType bias_type,
                              const void* addend, void* y, DType y_type, int64_t n, int64_t count,
                              bool with_gelu) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    const int64_t row = i / n, column = i % n;
    float value = sums[i];
    if (row_scales != nullptr) value *= row_scales[row];
    if (column_scales != nullptr) value *= column_scales[column];
    if (bias != nullptr) value += load_value(bias, bias_type, column);
    if (addend != nullptr) value += load_value(addend, y_type, i);
    store_value(y, y_type, i, with_gelu ? gelu(value) : value);
  }
}

__global__ void multiply_kernel(const float* a, const float* b, float* alpha) {
  *alpha = (a != nullptr ? *a : 1.0f) * (b != nullptr ? *b : 1.0f);
}

__global__ void swizzle_kernel(const uint8_t* linear, int64_t rows, int64_t columns,
                               uint8_t* swizzled) {
  const int64_t padded = (columns + 3) / 4 * 4;
  const int64_t count = swizzled_scale_bytes(rows, columns);
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    const int64_t r = i / padded, c = i % padded;
    swizzled[swizzled_scale_offset(r, c, columns)] =
        r < rows && c < columns ? linear[r * columns + c] : uint8_t{0};
  }
}

constexpr int kThreads = 256;
unsigned grid_for(int64_t count) { return std::min(blocks_for(count, kThreads), 65535u); }

}  // namespace

void dot_products(const MatMulArgs& args, cudaStream_t stream) {
  const Dots p{args.a.data,     args.b.data,     args.bias.data,  args.addend.data, args.y.data,
               args.a.dtype,    args.b.dtype,    args.bias.dtype, args.y.dtype,     args.y.shape[0],
               args.y.shape[1], args.a.shape[1], args.gelu};
  if (p.m == 0 || p.n == 0) return;
  const dim3 grid(blocks_for(p.n, kWarpsPerBlock), static_cast<unsigned>(p.m));
  dots_kernel_for(p)<<<grid, dim3(kWarp, kWarpsPerBlock), 0, stream>>>(p);
  HT_CUDA_LAUNCHED();
}

void widen(const ConstView& x, float* y, cudaStream_t stream) {
  const int64_t count = x.shape.numel();
  if (count == 0) return;
  widen_kernel<<<grid_for(count), kThreads, 0, stream>>>(x.data, x.dtype, count, y);
  HT_CUDA_LAUNCHED();
}

void widen(const bf16* x, int64_t count, float* y, cudaStream_t stream) {
  widen(ConstView{x, DType::kBF16, {count}}, y, stream);
}

void round_to_bf16(const ConstView& x, bf16* y, cudaStream_t stream) {
  const int64_t count = x.shape.numel();
  if (count == 0) return;
  round_kernel<<<grid_for(count), kThreads, 0, stream>>>(x.data, x.dtype, count, y);
  HT_CUDA_LAUNCHED();
}

void split_floats(const float* x, int64_t count, bf16* y, int64_t stride, cudaStream_t stream) {
  if (count == 0) return;
  split_kernel<<<grid_for(count), kThreads, 0, stream>>>(x, count, reinterpret_cast<uint16_t*>(y),
                                                         stride);
  HT_CUDA_LAUNCHED();
}

void finish_product(const FinishArgs& args, cudaStream_t stream) {
  const int64_t count = args.y.shape.numel();
  if (count == 0) return;
  finish_kernel<<<grid_for(count), kThreads, 0, stream>>>(
      args.sums, args.row_scales, args.column_scales, args.bias.data, args.bias.dtype,
      args.addend.data, args.y.data, args.y.dtype, args.y.shape[1], count, args.gelu);
  HT_CUDA_LAUNCHED();
}

void transpose_bytes(const uint8_t* x, int64_t rows, int64_t cols, uint8_t* y,
                     cudaStream_t stream) {
  if (rows * cols == 0) return;
  const auto tiles = [](int64_t n) { return static_cast<unsigned>((n + kTile - 1) / kTile); };
  const bool aligned = rows % kPiece == 0 && cols % kPiece == 0 &&
                       reinterpret_cast<uintptr_t>(x) % kPiece == 0 &&
                       reinterpret_cast<uintptr_t>(y) % kPiece == 0;
  transpose_kernel<<<dim3(tiles(cols), tiles(rows)), kTile * kTile / kPiece, 0, stream>>>(
      x, rows, cols, aligned, y);
  HT_CUDA_LAUNCHED();
}

void multiply_scalars(const float* a, const float* b, float* alpha, cudaStream_t stream) {
  multiply_kernel<<<1, 1, 0, stream>>>(a, b, alpha);
  HT_CUDA_LAUNCHED();
}

void swizzle_scales(const uint8_t* linear, int64_t rows, int64_t columns, uint8_t* swizzled,
                    cudaStream_t stream) {
  const int64_t count = swizzled_scale_bytes(rows, columns);
  swizzle_kernel<<<grid_for(count), kThreads, 0, stream>>>(linear, rows, columns, swizzled);
  HT_CUDA_LAUNCHED();
}

}  // namespace halftone::cuda
