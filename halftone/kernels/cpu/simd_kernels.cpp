// The CPU's fast table: rows are dealt to threads and worked through in pieces that stay in L1,
// with the vector spans of simd_spans.h. A transposed source is gathered a panel at a time.
#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>
#include <vector>

#include "halftone/base/error.h"
#include "halftone/base/threads.h"
#include "halftone/kernels/cpu/simd_spans.h"
#include "halftone/kernels/kernels.h"
#include "halftone/numerics/minifloat.h"

namespace halftone {
namespace {

constexpr int64_t kPiece = 4096;  // values worked on at a time, a multiple of every block
constexpr int64_t kPanel = 64;    // columns gathered at a time from a transposed source
constexpr int64_t kValuesPerThread = 1 << 16;  // below this a thread is not worth waking

int64_t bytes_per(DType dtype) { return bits_of(dtype) / 8; }

simd::Span span_of(const ConstMatrix& x, int64_t r, int64_t c, int64_t n) {
  const auto* base = static_cast<const std::byte*>(x.data);
  return {base + (r * x.stride + c) * bytes_per(x.dtype), x.dtype, n};
}

simd::Span part(simd::Span x, int64_t begin, int64_t n) {
  return {static_cast<const std::byte*>(x.data) + begin * bytes_per(x.dtype), x.dtype, n};
}

int64_t row_grain(int64_t cols) {
  return std::max<int64_t>(1, kValuesPerThread / std::max<int64_t>(cols, 1));
}

float matrix_amax(const ConstMatrix& x, int threads) {
  const bool dense = x.stride == x.cols || x.rows == 1;
  const int64_t rows =
      dense ? (x.rows * x.cols == 0 ? 0 : (x.rows * x.cols + kPiece - 1) / kPiece) : x.rows;
  const int64_t worth = x.rows * x.cols / kValuesPerThread;  // threads that have enough to do
  const int64_t pieces = std::clamp<int64_t>(worth, 1, std::max(threads, 1));
  std::vector<uint32_t> partial(static_cast<size_t>(pieces), 0);
  parallel_for(threads, pieces, 1, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      uint32_t largest = 0;
      for (int64_t r = rows * p / pieces; r < rows * (p + 1) / pieces; ++r) {
        const int64_t first = r * kPiece;
        const simd::Span span =
            dense ? span_of(x, 0, first, std::min(kPiece, x.rows * x.cols - first))
                  : span_of(x, r, 0, x.cols);
        largest = std::max(largest, simd::amax_bits(span));
      }
      partial[p] = largest;
    }
  });
  return bit_cast<float>(*std::max_element(partial.begin(), partial.end()));
}

// ---- quantize -----------------------------------------------------------------------------------

// Buffers of one thread for one piece of a row.
struct Piece {
  alignas(64) std::array<float, kPiece / 16> amax;
  alignas(64) std::array<float, kPiece / 16> factors;
  alignas(64) std::array<uint8_t, kPiece / 16> scales;
  alignas(64) std::array<uint32_t, kPiece + 128> random;
};

class RowQuantizer {
 public:
  // `scale` is the tensor's scale, the global scale or a static one, where there is one.
  RowQuantizer(const QuantizeArgs& args, int64_t cols, float scale)
      : a_(args), f_(args.format), cols_(cols), scale_(scale) {}

  // Rows [r, r + count) of the stored orientation, which share block scales when count > 1.
  void run(int64_t r, std::span<const simd::Span> rows) {
    for (int64_t c = 0; c < std::max<int64_t>(cols_, 1); c += kPiece) {
      const int64_t n = std::min(kPiece, cols_ - c);
      if (f_.span == ScaleSpan::kBlock) {
        block_scales(c, n, rows);
      } else if (f_.span == ScaleSpan::kRow) {
        if (c == 0) row_scale(r, rows[0]);
      } else {
        piece_.factors[0] = 1.0f / scale_;
      }
      for (size_t i = 0; i < rows.size(); ++i) {
        encode(r + static_cast<int64_t>(i), c, part(rows[i], c, n));
      }
    }
  }

 private:
  void row_scale(int64_t r, simd::Span row) {
    const float scale = a_.static_scale
                            ? scale_
                            : amax_scale(bit_cast<float>(simd::amax_bits(row)), f_.element_max());
    static_cast<float*>(a_.scales)[r] = scale;
    piece_.factors[0] = 1.0f / scale;
  }

  void block_scales(int64_t c, int64_t n, std::span<const simd::Span> rows) {
    const int64_t blocks = f_.scales_per_row(n);
    simd::block_amax(part(rows[0], c, n), f_.block, piece_.amax.data());
    for (const simd::Span& row : rows.subspan(1)) {
      std::array<float, kPiece / 16> more;
      simd::block_amax(part(row, c, n), f_.block, more.data());
      for (int64_t b = 0; b < blocks; ++b) {  // bits of magnitudes order NaN above numbers
        piece_.amax[b] = bit_cast<float>(
            std::max(bit_cast<uint32_t>(piece_.amax[b]), bit_cast<uint32_t>(more[b])));
      }
    }
    // The scale functions work on whole vectors.
    const int64_t padded =
        (blocks + simd::kScalePadding - 1) / simd::kScalePadding * simd::kScalePadding;
    std::fill(piece_.amax.begin() + blocks, piece_.amax.begin() + padded, 0.0f);
    uint8_t* codes = piece_.scales.data();
    float* factors = piece_.factors.data();
    if (!f_.global_scale) {
      simd::mx_scales(piece_.amax.data(), blocks, {f_.element, f_.rounding}, codes, factors);
      return;
    }
    const simd::Nvfp4Scales rule{scale_, f_.min_block_scale};
    if (f_.four_over_six) {
      simd::four_over_six_scales(part(rows[0], c, n), piece_.amax.data(), rule, codes, factors);
    } else {
      simd::nvfp4_scales(piece_.amax.data(), blocks, rule, codes, factors);
    }
  }

  void encode(int64_t r, int64_t c, simd::Span values) {
    if (f_.span == ScaleSpan::kBlock) {
      uint8_t* scales = static_cast<uint8_t*>(a_.scales) + r * f_.scales_per_row(cols_);
      std::copy_n(piece_.scales.data(), f_.scales_per_row(values.size), scales + c / f_.block);
    }
    const uint32_t* random = nullptr;
    if (a_.stochastic) {
      const auto first = static_cast<uint64_t>(r * cols_ + c);
      const uint64_t start = first / 64 * 64;
      const auto count = static_cast<int64_t>(first - start) + values.size;
      simd::random_words(*a_.stochastic, start, count, piece_.random.data());
      random = piece_.random.data() + (first - start);
    }
    const simd::Encode how{f_.element, f_.block, piece_.factors.data(), random};
    simd::encode(values, how, a_.codes + r * f_.code_bytes(cols_) + f_.code_bytes(c));
  }

  const QuantizeArgs& a_;
  const Format& f_;
  int64_t cols_;
  float scale_;
  Piece piece_;
};

// Rows [r0, r1) of the transpose of x, each contiguous in `panel`.
template <class T>
void gather_transposed(const ConstMatrix& x, int64_t r0, int64_t r1, T* panel) {
  const T* source = static_cast<const T*>(x.data);
  constexpr int64_t kStep = 64;
  for (int64_t c0 = 0; c0 < x.rows; c0 += kStep) {
    const int64_t c1 = std::min(c0 + kStep, x.rows);
    for (int64_t r = r0; r < r1; ++r) {
      for (int64_t c = c0; c < c1; ++c) panel[(r - r0) * x.rows + c] = source[c * x.stride + r];
    }
  }
}

void quantize_rows(const QuantizeArgs& a, float scale, int threads) {
  const int64_t rows = a.transpose ? a.x.cols : a.x.rows;
  const int64_t cols = a.transpose ? a.x.rows : a.x.cols;
  const int64_t tile = a.format.tile_rows;
  const int64_t panel_rows = a.transpose ? kPanel : tile;  // kPanel is a multiple of every tile
  const int64_t panels = (rows + panel_rows - 1) / panel_rows;
  const int64_t grain = std::max<int64_t>(1, row_grain(cols) / panel_rows);
  parallel_for(threads, panels, grain, [&](int64_t begin, int64_t end) {
    RowQuantizer quantizer(a, cols, scale);
    std::vector<std::byte> panel;
    if (a.transpose) panel.resize(static_cast<size_t>(kPanel * cols * bytes_per(a.x.dtype)));
    std::array<simd::Span, 16> spans{};
    for (int64_t p = begin; p < end; ++p) {
      const int64_t r0 = p * panel_rows, r1 = std::min(r0 + panel_rows, rows);
      if (a.transpose) {
        a.x.dtype == DType::kF32
            ? gather_transposed(a.x, r0, r1, reinterpret_cast<uint32_t*>(panel.data()))
            : gather_transposed(a.x, r0, r1, reinterpret_cast<uint16_t*>(panel.data()));
      }
      for (int64_t r = r0; r < r1; r += tile) {
        const int64_t count = std::min(tile, r1 - r);
        for (int64_t i = 0; i < count; ++i) {
          const ConstMatrix gathered{panel.data(), a.x.dtype, r1 - r0, cols, cols};
          spans[i] =
              a.transpose ? span_of(gathered, r + i - r0, 0, cols) : span_of(a.x, r + i, 0, cols);
        }
        quantizer.run(r, {spans.data(), static_cast<size_t>(count)});
      }
    }
  });
}

void simd_quantize(const QuantizeArgs& a, Stream stream) {
  const Format& f = a.format;
  float scale = 1.0f;
  if (a.static_scale) {
    scale = *a.static_scale;
  } else if (f.global_scale) {
    const float room = f.four_over_six ? kFourOverSixMaxBlockScale : kNvfp4MaxBlockScale;
    scale = nvfp4_global_scale(matrix_amax(a.x, stream.threads), room);
  } else if (f.span == ScaleSpan::kTensor) {
    scale = amax_scale(matrix_amax(a.x, stream.threads), f.element_max());
  }
  if (f.global_scale) *a.global_scale = scale;
  if (f.span == ScaleSpan::kTensor) static_cast<float*>(a.scales)[0] = scale;
  quantize_rows(a, scale, stream.threads);
}

// ---- dequantize ---------------------------------------------------------------------------------

// Decoded scales of every code, so that a block's scale is one load.
std::array<float, 256> scale_values(ScaleType type) {
  std::array<float, 256> values{};
  for (int i = 0; i < 256; ++i) {
    const auto code = static_cast<uint8_t>(i);
    values[i] = type == ScaleType::kE8M0 ? decode_e8m0(code) : decode<E4M3>(code);
  }
  return values;
}

template <class T>
void scatter_transposed(const T* panel, int64_t r0, int64_t r1, const Matrix& y) {
  T* out = static_cast<T*>(y.data);
  for (int64_t c = 0; c < y.rows; ++c) {
    for (int64_t r = r0; r < r1; ++r) out[c * y.stride + r] = panel[(r - r0) * y.rows + c];
  }
}

void simd_dequantize(const DequantizeArgs& a, Stream stream) {
  const Format& f = a.format;
  const int64_t rows = a.transpose ? a.y.cols : a.y.rows;
  const int64_t cols = a.transpose ? a.y.rows : a.y.cols;
  const int64_t element = bytes_per(a.y.dtype);
  const std::array<float, 256> scale_value = scale_values(f.scale);
  const int64_t panel_rows = a.transpose ? kPanel : 1;
  const int64_t grain = std::max<int64_t>(1, row_grain(cols) / panel_rows);
  const auto decode_row = [&](int64_t r, std::byte* out) {
    const uint8_t* codes = a.codes + r * f.code_bytes(cols);
    std::array<float, kPiece / 16> scales;
    for (int64_t c = 0; c < cols; c += kPiece) {
      const int64_t n = std::min(kPiece, cols - c);
      if (f.span == ScaleSpan::kBlock) {
        const auto* stored =
            static_cast<const uint8_t*>(a.scales) + r * f.scales_per_row(cols) + c / f.block;
        for (int64_t b = 0; b < f.scales_per_row(n); ++b) scales[b] = scale_value[stored[b]];
      } else {
        scales[0] = static_cast<const float*>(a.scales)[f.span == ScaleSpan::kRow ? r : 0];
      }
      const simd::Decode how{f.element, f.block, scales.data(),
                             f.global_scale ? *a.global_scale : 1.0f};
      simd::decode(codes + f.code_bytes(c), n, how, a.y.dtype, out + c * element);
    }
  };
  parallel_for(
      stream.threads, (rows + panel_rows - 1) / panel_rows, grain, [&](int64_t begin, int64_t end) {
        if (!a.transpose) {
          auto* y = static_cast<std::byte*>(a.y.data);
          for (int64_t r = begin; r < end; ++r) decode_row(r, y + r * a.y.stride * element);
          return;
        }
        std::vector<std::byte> panel(static_cast<size_t>(kPanel * cols * element));
        for (int64_t p = begin; p < end; ++p) {
          const int64_t r0 = p * kPanel, r1 = std::min(r0 + kPanel, rows);
          for (int64_t r = r0; r < r1; ++r) {
            decode_row(r, panel.data() + (r - r0) * cols * element);
          }
          a.y.dtype == DType::kF32
              ? scatter_transposed(reinterpret_cast<const float*>(panel.data()), r0, r1, a.y)
              : scatter_transposed(reinterpret_cast<const bf16*>(panel.data()), r0, r1, a.y);
        }
      });
}

}  // namespace

void simd::fill_quantize(Kernels& table) {
  if (!simd::available()) return;
  table.name = simd::instruction_set();
  // They take what the reference takes.
  const Kernels& reference = cpu_scalar_kernels();
  table.amax.prefer({reference.amax.first().supports,
                     [](const AmaxArgs& a, Stream s) { *a.amax = matrix_amax(a.x, s.threads); }});
  table.quantize.prefer({reference.quantize.first().supports, simd_quantize});
  table.dequantize.prefer({reference.dequantize.first().supports, simd_dequantize});
}

}  // namespace halftone
