// amax and quantize. A tensor's amax is taken by one pass over memory; a second one reads segments
// (a block that has a scale, or 16 values of a row), one per thread, and writes their codes.
#include <algorithm>

#include "halftone/kernels/cuda/codecs.cuh"
#include "halftone/kernels/cuda/dequantize.h"
#include "halftone/kernels/workspace.h"
#include "halftone/numerics/swizzle.h"

namespace halftone::cuda {
namespace {

constexpr int kThreads = 256;

// ---- amax: bits of magnitudes, which order NaN above Inf above every number ---------------------

template <int N>
__device__ uint32_t largest_of(const float (&v)[N], uint32_t largest = 0) {
#pragma unroll
  for (int i = 0; i < N; ++i) largest = max(largest, magnitude_bits(v[i]));
  return largest;
}

// Rows of `cols` values. With vectors, chunks of 16 bytes; the last one of a row may be short.
template <class T>
__global__ void amax_kernel(const T* x, int64_t rows, int64_t cols, int64_t stride, bool vectors,
                            uint32_t* amax) {
  constexpr int N = 16 / sizeof(T);
  const int64_t chunks = (cols + N - 1) / N, total = rows * chunks;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  uint32_t largest = 0;
#pragma unroll 4
  for (int64_t i = thread_index(); i < total; i += step) {
    const int64_t row = rows == 1 ? 0 : divide(i, chunks);
    const int64_t c = (i - row * chunks) * N;
    const T* from = x + row * stride + c;
    if (vectors && c + N <= cols) {
      float v[N];
      load_values(from, v);
      largest = largest_of(v, largest);
    } else {
      for (int k = 0; k < N && c + k < cols; ++k)
        largest = max(largest, magnitude_bits(to_float(from[k])));
    }
  }
  largest = block_max<kThreads>(largest);
  if (threadIdx.x == 0) atomicMax(amax, largest);
}

bool vectors_of(const ConstMatrix& x) {
  return aligned_for(x.data, x.dtype, 16) && (x.rows == 1 || x.stride * size_of(x.dtype) % 16 == 0);
}

// One row where rows follow each other without gaps.
ConstMatrix flattened(ConstMatrix x) {
  if (x.stride != x.cols || x.rows == 0) return x;
  x.cols *= x.rows;
  x.stride = x.cols;
  x.rows = 1;
  return x;
}

void launch_amax(const ConstMatrix& matrix, uint32_t* amax, const Stream& stream) {
  const Context& context = context_of(stream);
  HT_CUDA(cudaMemsetAsync(amax, 0, sizeof(uint32_t), context.stream()));
  const ConstMatrix x = flattened(matrix);
  if (x.rows * x.cols == 0) return;
  dispatch(x.dtype, [&]<class T>(T) {
    const int64_t chunks = x.rows * ((x.cols + 16 / sizeof(T) - 1) / (16 / sizeof(T)));
    const int64_t blocks = std::min<int64_t>((chunks + kThreads - 1) / kThreads,
                                             int64_t{8} * context.multiprocessors());
    amax_kernel<T><<<static_cast<unsigned>(blocks), kThreads, 0, context.stream()>>>(
        static_cast<const T*>(x.data), x.rows, x.cols, x.stride, vectors_of(x), amax);
  });
  HT_CUDA_LAUNCHED();
}

// Of every column, for rows of the transpose: a thread per column and slice of rows.
template <class T>
__global__ void column_amax_kernel(const T* x, int64_t rows, int64_t cols, int64_t stride,
                                   uint32_t* amax, int64_t total) {
  constexpr int64_t kSlice = 64;
  const int64_t index = thread_index();
  if (index >= total) return;
  const int64_t slice = divide(index, cols), c = index - slice * cols;
  const int64_t end = min((slice + 1) * kSlice, rows);
  uint32_t largest = 0;
  for (int64_t r = slice * kSlice; r < end; ++r)
    largest = max(largest, magnitude_bits(to_float(x[r * stride + c])));
  atomicMax(amax + c, largest);
}

// ---- quantize -----------------------------------------------------------------------------------

struct QuantizePlan {
  const void* x;
  int64_t stride;
  bool transpose;
  int64_t rows, cols;  // of the orientation that is stored
  int64_t segments;    // of a row
  bool vectors;        // full segments are read and written by vectors
  uint8_t* codes;
  int64_t code_bytes;  // of a row
  float* scales;       // of a tensor or rows
  uint8_t* block_scales;
  float* global_scale;
  const uint32_t* amax;  // of the tensor or of each row; null where the scale is static
  bool per_row, is_static;
  float static_scale, min_block_scale;
  ExponentRounding rounding;
  bool tiles, four_over_six, swizzled;
  PhiloxKey key;
  const float* column_factors;  // of rows; null where there are none
  bool vector_factors;          // which are read by vectors
};

template <class T, int N>
__device__ void load_segment(const QuantizePlan& p, int64_t r, int64_t c, int count,
                             float (&v)[N]) {
  const T* x = static_cast<const T*>(p.x) + (p.transpose ? c * p.stride + r : r * p.stride + c);
  if (p.vectors && count == N) return load_values(x, v);
  const int64_t step = p.transpose ? p.stride : 1;
#pragma unroll
  for (int i = 0; i < N; ++i) v[i] = i < count ? to_float(x[i * step]) : 0.0f;
}

// Of one row, with its columns' factors.
template <class T, int N>
__device__ void load_row_segment(const QuantizePlan& p, int64_t r, int64_t c, int count,
                                 float (&v)[N]) {
  load_segment<T>(p, r, c, count, v);
  if (p.column_factors == nullptr) return;
  if (p.vector_factors && count == N) {
    float factors[N];
    load_values(p.column_factors + c, factors);
#pragma unroll
    for (int i = 0; i < N; ++i) v[i] *= factors[i];
    return;
  }
#pragma unroll
  for (int i = 0; i < N; ++i) v[i] = i < count ? v[i] * p.column_factors[c + i] : 0.0f;
}

template <class F, int N, bool kStochastic>
__device__ void write_segment(const QuantizePlan& p, int64_t r, int64_t c, int count,
                              const float (&v)[N], float factor, bool finite) {
  constexpr int kWords = N * kCodeBits<F> / 32;
  uint32_t words[kWords];
  if constexpr (kStochastic) {
    encode_values_stochastic<F>(v, factor, p.key, static_cast<uint64_t>(r * p.cols + c), words);
  } else {
    encode_values<F>(v, factor, finite, words);
  }
  uint8_t* to = p.codes + r * p.code_bytes + c * kCodeBits<F> / 8;
  if (p.vectors && count == N) {
    if constexpr (kWords == 2) {
      *reinterpret_cast<uint2*>(to) = make_uint2(words[0], words[1]);
    } else {
#pragma unroll
      for (int w = 0; w < kWords; w += 4)
        reinterpret_cast<uint4*>(to)[w / 4] =
            make_uint4(words[w], words[w + 1], words[w + 2], words[w + 3]);
    }
    return;
  }
  const int bytes = (count * kCodeBits<F> + 7) / 8;
#pragma unroll
  for (int b = 0; b < kWords * 4; ++b) {
    if (b >= bytes) break;
    auto byte = static_cast<uint8_t>(words[b / 4] >> (b % 4 * 8));
    if (kCodeBits<F> == 4 && 2 * b + 1 == count) byte &= 0xF;  // an odd row ends in a zero nibble
    to[b] = byte;
  }
}

__device__ int segment_length(const QuantizePlan& p, int64_t c, int most) {
  return static_cast<int>(min(p.cols - c, static_cast<int64_t>(most)));
}

// Row and segment of a thread: neighbours read neighbours in either orientation.
struct Place {
  int64_t r, segment;
  bool inside;
};
__device__ Place place_of(const QuantizePlan& p, int64_t index) {
  if (p.tiles) {  // 16 threads that follow each other have the rows of a tile
    const int64_t tile = index / 16, band = divide(tile, p.segments);
    const int64_t r = band * 16 + index % 16;
    return {r, tile - band * p.segments, r < p.rows};
  }
  if (p.transpose) {
    const int64_t segment = divide(index, p.rows);
    return {index - segment * p.rows, segment, segment < p.segments};
  }
  const int64_t r = divide(index, p.segments);
  return {r, index - r * p.segments, r < p.rows};
}

__device__ void write_block_scale(const QuantizePlan& p, const Place& at, uint8_t scale) {
  if (!p.swizzled) {
    p.block_scales[at.r * p.segments + at.segment] = scale;
    return;
  }
  p.block_scales[swizzled_scale_offset(at.r, at.segment, p.segments)] = scale;
  // The padding behind a row's last scale is read by products.
  for (int64_t c = at.segment + 1; at.segment + 1 == p.segments && c % 4 != 0; ++c) {
    p.block_scales[swizzled_scale_offset(at.r, c, p.segments)] = 0;
  }
}

__device__ bool is_finite(uint32_t magnitude) { return magnitude < kF32Infinity; }

template <class T, class F, bool kStochastic>
__global__ void quantize_scaled_kernel(const __grid_constant__ QuantizePlan p) {
  constexpr int N = 16;
  const int64_t index = thread_index();
  if (!p.per_row && index == 0) {
    p.scales[0] =
        p.amax == nullptr ? p.static_scale : amax_scale(bit_cast<float>(p.amax[0]), F::kMax);
  }
  if (p.rows * p.segments == 0) return;
  const Place at = place_of(p, index);
  if (!at.inside) return;
  float scale = p.static_scale;
  if (p.amax != nullptr) scale = amax_scale(bit_cast<float>(p.amax[p.per_row ? at.r : 0]), F::kMax);
  if (p.per_row && at.segment == 0) p.scales[at.r] = scale;
  const int64_t c = at.segment * N;
  const int count = segment_length(p, c, N);
  if (count <= 0) return;
  float v[N];
  load_segment<T>(p, at.r, c, count, v);
  write_segment<F, N, kStochastic>(p, at.r, c, count, v, 1.0f / scale, false);
}

// A block per row, which it reads twice where it is longer than its threads hold; the second time
// from the cache.
template <class T, class F, bool kStochastic>
__global__ void quantize_rows_kernel(const __grid_constant__ QuantizePlan p) {
  constexpr int N = 16;
  const int64_t r = blockIdx.x;
  uint32_t largest = 0;
  float v[N];
  for (int64_t c = int64_t{threadIdx.x} * N; c < p.cols && !p.is_static; c += kThreads * N) {
    load_row_segment<T>(p, r, c, segment_length(p, c, N), v);
    largest = largest_of(v, largest);
  }
  float scale = p.static_scale;
  if (!p.is_static) scale = amax_scale(bit_cast<float>(block_max<kThreads>(largest)), F::kMax);
  if (threadIdx.x == 0) p.scales[r] = scale;
  const float factor = 1.0f / scale;
  const bool held = !p.is_static && p.cols <= kThreads * N;
  for (int64_t c = int64_t{threadIdx.x} * N; c < p.cols; c += kThreads * N) {
    const int count = segment_length(p, c, N);
    if (!held) load_row_segment<T>(p, r, c, count, v);
    write_segment<F, N, kStochastic>(p, r, c, count, v, factor, false);
  }
}

template <class T, class F, bool kStochastic>
__global__ void quantize_mx_kernel(const __grid_constant__ QuantizePlan p) {
  constexpr int N = 32;
  const Place at = place_of(p, thread_index());
  if (!at.inside) return;
  const int64_t c = at.segment * N;
  const int count = segment_length(p, c, N);
  float v[N];
  load_segment<T>(p, at.r, c, count, v);
  const uint8_t scale = mx_scale<F>(bit_cast<float>(largest_of(v)), p.rounding);
  write_block_scale(p, at, scale);
  write_segment<F, N, kStochastic>(p, at.r, c, count, v, reciprocal_e8m0(scale), false);
}

template <int kHalf>
__device__ void fold(float (&sum)[16]) {
#pragma unroll
  for (int i = 0; i < kHalf; ++i) sum[i] = __fadd_rn(sum[i], sum[i + kHalf]);
}

// Of a block rounded to nearest under a scale, summed as the reference has it: a binary tree, i
// with i + 8, then i + 4, and so on. Inlined, as a call would need v in memory.
__device__ __forceinline__ float squared_error(const float (&v)[16], int count, uint8_t block_scale,
                                               float g) {
  const float scale = decode<E4M3>(block_scale) * g;
  const float reciprocal = nvfp4_reciprocal(decode<E4M3>(block_scale), g);
  float sum[16];
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const float rounded = decode<E2M1>(encode<E2M1>(__fmul_rn(v[i], reciprocal)));
    const float difference = __fsub_rn(v[i], __fmul_rn(rounded, scale));
    sum[i] = i < count ? __fmul_rn(difference, difference) : 0.0f;
  }
  fold<8>(sum);
  fold<4>(sum);
  fold<2>(sum);
  fold<1>(sum);
  return sum[0];
}

template <class T, bool kStochastic>
__global__ void quantize_nvfp4_kernel(const __grid_constant__ QuantizePlan p) {
  constexpr int N = 16;
  const int64_t index = thread_index();
  float g = p.static_scale;
  if (p.amax != nullptr) {
    g = nvfp4_global_scale(bit_cast<float>(p.amax[0]),
                           p.four_over_six ? kFourOverSixMaxBlockScale : kNvfp4MaxBlockScale);
  }
  if (index == 0) *p.global_scale = g;
  if (p.rows * p.segments == 0) return;
  const Place at = place_of(p, index);
  if (!at.inside && !p.tiles) return;  // of a tile, all 16 threads must meet
  const int64_t c = at.segment * N;
  const int count = segment_length(p, c, N);
  float v[N] = {};
  if (at.inside) load_segment<T>(p, at.r, c, count, v);
  uint32_t largest = largest_of(v);
  if (p.tiles) {
    for (int step = 8; step > 0; step /= 2)
      largest = max(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, step));
    if (!at.inside) return;
  }
  const float amax = bit_cast<float>(largest);
  uint8_t scale = nvfp4_block_scale(amax, 6.0f, g, p.min_block_scale);
  if (p.four_over_six) {
    const uint8_t four = nvfp4_block_scale(amax, 4.0f, g, p.min_block_scale);
    if (squared_error(v, count, four, g) < squared_error(v, count, scale, g)) scale = four;
  }
  write_block_scale(p, at, scale);
  const float factor = nvfp4_reciprocal(decode<E4M3>(scale), g);
  const bool finite = is_finite(largest) && is_finite(magnitude_bits(factor));
  write_segment<E2M1, N, kStochastic>(p, at.r, c, count, v, factor, finite);
}

// ---- launches -----------------------------------------------------------------------------------

QuantizePlan plan_of(const QuantizeArgs& args) {
  const Format& f = args.format;
  QuantizePlan p{};
  ConstMatrix x = args.x;
  if (f.span == ScaleSpan::kTensor && !args.transpose) x = flattened(x);
  p.x = x.data;
  p.stride = x.stride;
  p.transpose = args.transpose;
  p.rows = args.transpose ? x.cols : x.rows;
  p.cols = args.transpose ? x.rows : x.cols;
  const int length = f.span == ScaleSpan::kBlock ? f.block : 16;
  p.segments = (p.cols + length - 1) / length;
  p.per_row = f.span == ScaleSpan::kRow;
  if (p.per_row) p.segments = std::max<int64_t>(p.segments, 1);  // an empty row has a scale, too
  p.codes = args.codes;
  p.code_bytes = f.code_bytes(p.cols);
  const uintptr_t store = f.element == ElementType::kE2M1 ? 8 : 16;
  p.vectors = !args.transpose && vectors_of(x) && (p.rows == 1 || p.cols % length == 0) &&
              reinterpret_cast<uintptr_t>(args.codes) % store == 0;
  if (f.scale == ScaleType::kF32) {
    p.scales = static_cast<float*>(args.scales);
  } else {
    p.block_scales = static_cast<uint8_t*>(args.scales);
  }
  p.global_scale = args.global_scale;
  p.is_static = args.static_scale.has_value();
  p.static_scale = args.static_scale.value_or(1.0f);
  p.min_block_scale = f.min_block_scale;
  p.rounding = f.rounding;
  p.tiles = f.tile_rows == 16;
  p.four_over_six = f.four_over_six;
  p.swizzled = f.swizzled;
  p.key = args.stochastic.value_or(PhiloxKey{});
  p.column_factors = args.column_factors;
  p.vector_factors = reinterpret_cast<uintptr_t>(args.column_factors) % 16 == 0;
  return p;
}

template <class T, class F, bool kStochastic>
void launch_segments(const QuantizeArgs& args, const QuantizePlan& p, cudaStream_t on) {
  const int64_t rows = p.tiles ? (p.rows + 15) / 16 * 16 : p.rows;
  const int64_t threads = rows * p.segments;
  const unsigned blocks = std::max(blocks_for(threads, kThreads), 1u);  // scales need one anyway
  if constexpr (kCodeBits<F> == 4) {
    quantize_nvfp4_kernel<T, kStochastic><<<blocks, kThreads, 0, on>>>(p);
  } else if (args.format.span == ScaleSpan::kBlock) {
    if (threads == 0) return;
    quantize_mx_kernel<T, F, kStochastic><<<blocks, kThreads, 0, on>>>(p);
  } else if (p.per_row && !p.transpose) {
    if (p.rows == 0) return;
    quantize_rows_kernel<T, F, kStochastic><<<static_cast<unsigned>(p.rows), kThreads, 0, on>>>(p);
  } else {
    quantize_scaled_kernel<T, F, kStochastic><<<blocks, kThreads, 0, on>>>(p);
  }
  HT_CUDA_LAUNCHED();
}

template <class F>
void launch_element(const QuantizeArgs& args, const QuantizePlan& p, cudaStream_t on) {
  dispatch(args.x.dtype, [&]<class T>(T) {
    if (args.stochastic) {
      launch_segments<T, F, true>(args, p, on);
    } else {
      launch_segments<T, F, false>(args, p, on);
    }
  });
}

int64_t amax_count(const QuantizeArgs& args) {
  const Format& f = args.format;
  if (f.span == ScaleSpan::kRow) return args.transpose ? args.x.cols : 0;
  return f.span == ScaleSpan::kTensor || f.global_scale ? 1 : 0;
}

void quantize(const QuantizeArgs& args, Stream stream) {
  QuantizePlan p = plan_of(args);
  const auto on = context_of(stream).stream();
  const int64_t count = args.static_scale ? 0 : amax_count(args);
  if (count > 0) {
    auto* amax = reinterpret_cast<uint32_t*>(Workspace(stream).bytes(count * 4));
    if (p.per_row) {
      const ConstMatrix& x = args.x;
      HT_CUDA(cudaMemsetAsync(amax, 0, static_cast<size_t>(count) * 4, on));
      const int64_t total = (x.rows + 63) / 64 * x.cols;
      if (total > 0) {
        dispatch(x.dtype, [&]<class T>(T) {
          column_amax_kernel<T><<<blocks_for(total, kThreads), kThreads, 0, on>>>(
              static_cast<const T*>(x.data), x.rows, x.cols, x.stride, amax, total);
        });
        HT_CUDA_LAUNCHED();
      }
    } else {
      launch_amax(args.x, amax, stream);
    }
    p.amax = amax;
  }
  switch (args.format.element) {
    case ElementType::kE4M3:
      return launch_element<E4M3>(args, p, on);
    case ElementType::kE5M2:
      return launch_element<E5M2>(args, p, on);
    default:
      return launch_element<E2M1>(args, p, on);
  }
}

}  // namespace

void fill_quantize(Kernels& table) {
  table.amax = {[](const AmaxArgs& a) { return is_high_precision(a.x.dtype); },
                [](const AmaxArgs& args, Stream stream) {
                  launch_amax(args.x, reinterpret_cast<uint32_t*>(args.amax), stream);
                },
                nullptr};
  table.quantize = {
      [](const QuantizeArgs& a) {
        const bool by_row = a.format.span == ScaleSpan::kRow && !a.transpose;
        return is_high_precision(a.x.dtype) && a.format.quantized() &&
               why_invalid(a.format).empty() && (by_row || a.column_factors == nullptr);
      },
      quantize,
      [](const QuantizeArgs& args, const Stream&) { return aligned_bytes(amax_count(args) * 4); }};
  fill_dequantize(table);
}

}  // namespace halftone::cuda
