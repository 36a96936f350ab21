#include "halftone/kernels/cuda/codecs.cuh"
#include "halftone/kernels/cuda/dequantize.h"

namespace halftone::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kSegment = 16;  // codes of a thread: no block has fewer

struct DecodePlan {
  const uint8_t* codes;
  const uint8_t* block_scales;  // null without blocks
  const float* scales;          // of rows or the tensor; null where they are left out
  bool per_row;
  const float* global_scale;  // null where it is left out
  int64_t rows, cols;         // of the orientation that is stored
  int64_t code_bytes, scales_per_row, segments;
  int block;
  void* y;
  int64_t y_stride;
  bool transpose;
  bool vectors;  // full segments are read and written by vectors
};

template <class F>
__device__ float block_scale(uint8_t code) {
  if constexpr (kCodeBits<F> == 4) {
    return decode<E4M3>(code);
  } else {
    return decode_e8m0(code);
  }
}

__device__ void store_one(bf16* y, float value) { *y = to_bf16(value); }
__device__ void store_one(float* y, float value) { *y = value; }

template <class F, class Y>
__global__ void decode_kernel(const __grid_constant__ DecodePlan p, int64_t total) {
  const int64_t index = thread_index();
  if (index >= total) return;
  // Neighbours write neighbours in either orientation.
  const int64_t outer = divide(index, p.transpose ? p.rows : p.segments);
  const int64_t inner = index - outer * (p.transpose ? p.rows : p.segments);
  const int64_t r = p.transpose ? inner : outer, c = (p.transpose ? outer : inner) * kSegment;
  const int count = static_cast<int>(min(p.cols - c, int64_t{kSegment}));

  constexpr int kWords = kSegment * kCodeBits<F> / 32;
  const uint8_t* from = p.codes + r * p.code_bytes + c * kCodeBits<F> / 8;
  uint32_t words[kWords] = {};
  if (p.vectors && count == kSegment) {
    if constexpr (kWords == 2) {
      const uint2 two = *reinterpret_cast<const uint2*>(from);
      words[0] = two.x, words[1] = two.y;
    } else {
      const uint4 four = *reinterpret_cast<const uint4*>(from);
      words[0] = four.x, words[1] = four.y, words[2] = four.z, words[3] = four.w;
    }
  } else {
    const int bytes = (count * kCodeBits<F> + 7) / 8;
#pragma unroll
    for (int b = 0; b < kWords * 4; ++b) {
      if (b < bytes) words[b / 4] |= static_cast<uint32_t>(from[b]) << (b % 4 * 8);
    }
  }
  float v[kSegment];
  decode_values<F>(words, v);
  const auto multiply = [&](float by) {
#pragma unroll
    for (int i = 0; i < kSegment; ++i) v[i] *= by;
  };
  if (p.block_scales != nullptr)
    multiply(block_scale<F>(p.block_scales[r * p.scales_per_row + c / p.block]));
  if (p.scales != nullptr) multiply(p.scales[p.per_row ? r : 0]);
  if (p.global_scale != nullptr) multiply(*p.global_scale);

  Y* to = static_cast<Y*>(p.y) + (p.transpose ? c * p.y_stride + r : r * p.y_stride + c);
  if (p.vectors && count == kSegment) return store_values(to, v);
  const int64_t step = p.transpose ? p.y_stride : 1;
#pragma unroll
  for (int i = 0; i < kSegment; ++i) {
    if (i < count) store_one(to + i * step, v[i]);
  }
}

DecodePlan plan_of(const Format& f, const uint8_t* codes, const void* scales, int64_t rows,
                   int64_t cols) {
  DecodePlan p{};
  p.codes = codes;
  if (f.span == ScaleSpan::kBlock) p.block_scales = static_cast<const uint8_t*>(scales);
  p.rows = rows;
  p.cols = cols;
  p.code_bytes = f.code_bytes(cols);
  p.scales_per_row = f.scales_per_row(cols);
  p.segments = (cols + kSegment - 1) / kSegment;
  p.block = f.block;
  return p;
}

void launch_decode(DecodePlan p, ElementType element, DType dtype, const Stream& stream) {
  const int64_t total = p.rows * p.segments;
  if (total == 0) return;
  const bool packed = element == ElementType::kE2M1;
  p.vectors = !p.transpose && (p.rows == 1 || p.cols % kSegment == 0) &&
              reinterpret_cast<uintptr_t>(p.codes) % (packed ? 8 : 16) == 0 &&
              aligned_for(p.y, dtype, kSegment) &&
              (p.rows == 1 || p.y_stride * size_of(dtype) % 16 == 0);
  const auto on = context_of(stream).stream();
  const unsigned blocks = blocks_for(total, kThreads);
  const auto launch = [&]<class F>(F) {
    if (dtype == DType::kBF16) {
      decode_kernel<F, bf16><<<blocks, kThreads, 0, on>>>(p, total);
    } else {
      decode_kernel<F, float><<<blocks, kThreads, 0, on>>>(p, total);
    }
  };
  if (packed) {
    launch(E2M1{});
  } else if (element == ElementType::kE4M3) {
    launch(E4M3{});
  } else {
    launch(E5M2{});
  }
  HT_CUDA_LAUNCHED();
}

void dequantize(const DequantizeArgs& args, Stream stream) {
  const Format& f = args.format;
  DecodePlan p = plan_of(f, args.codes, args.scales, args.transpose ? args.y.cols : args.y.rows,
                         args.transpose ? args.y.rows : args.y.cols);
  if (f.span != ScaleSpan::kBlock) p.scales = static_cast<const float*>(args.scales);
  p.per_row = f.span == ScaleSpan::kRow;
  if (f.global_scale) p.global_scale = args.global_scale;
  p.y = args.y.data;
  p.y_stride = args.y.stride;
  p.transpose = args.transpose;
  launch_decode(p, f.element, args.y.dtype, stream);
}

}  // namespace

void decode_blocks(const ConstView& x, int64_t rows, int64_t cols, bf16* y, const Stream& stream) {
  DecodePlan p = plan_of(*x.format, static_cast<const uint8_t*>(x.data), x.scales, rows, cols);
  p.y = y;
  p.y_stride = cols;
  launch_decode(p, x.format->element, DType::kBF16, stream);
}

void fill_dequantize(Kernels& table) {
  table.dequantize = {
      [](const DequantizeArgs& a) { return a.format.quantized() && stores_from_float(a.y.dtype); },
      dequantize, nullptr};
}

}  // namespace halftone::cuda
