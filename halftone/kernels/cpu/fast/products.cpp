// Matrix products in float: oneDNN's bf16 is several times slower on CPUs without AMX.
// Operands that are stored in fewer bits are decoded a panel at a time beside the product.
#include "halftone/kernels/cpu/fast/gemm.h"
#include "halftone/kernels/cpu/fast/rows.h"
#include "halftone/kernels/workspace.h"

namespace halftone::fast {
namespace {

// Items with fewer rows (modulation has one) are not worth a tile.
constexpr int64_t kFewRows = 16;

bool plain(const ConstView& x) { return x.dtype == DType::kF32 && x.format == nullptr; }
bool per_block(const ConstView& x) { return x.format->span == ScaleSpan::kBlock; }

// Rows of b that are decoded at a time: large enough that packing the other operand again for each
// panel costs little, small enough that panel and result stay in the second-level caches.
int64_t panel_rows(int64_t rows) { return std::min<int64_t>(rows, 1024); }
// More, where a panel would have too few tiles for the threads.
int64_t panel_rows(const Tiling& tiling, int64_t m, int64_t n, int threads) {
  const int64_t items = (m + tiling.item - 1) / tiling.item;
  const int64_t down = items * ((tiling.item + tiling.rows - 1) / tiling.rows);
  return std::min(n, std::max<int64_t>(1024, (threads + down - 1) / down * tiling.cols));
}

// Rows [first, first + count) of a matrix as float. Of a quantized one: what codes and block scales
// stand for, exactly; other scales are left to the caller. `ones` holds as many ones as rows.
void decode(const ConstView& x, int64_t first, int64_t count, const float* ones, float* out,
            Stream stream) {
  const int64_t cols = x.shape[1];
  if (x.format == nullptr) {
    for_rows(stream, count, cols, [&](int64_t begin, int64_t end) {
      const int64_t n = (end - begin) * cols;
      const float* in = read(x, (first + begin) * cols, n, out + begin * cols);
      if (in != out + begin * cols) std::copy_n(in, n, out + begin * cols);
    });
    return;
  }
  const Format& f = *x.format;
  DequantizeArgs args;
  args.format = f;
  args.codes = static_cast<const uint8_t*>(x.data) + first * f.code_bytes(cols);
  args.scales = per_block(x)
                    ? static_cast<const uint8_t*>(x.scales) + first * f.scales_per_row(cols)
                    : static_cast<const void*>(ones);
  args.global_scale = ones;
  args.y = {out, DType::kF32, count, cols, cols};
  cpu_kernels().dequantize.launch(args, stream);
}

// What decode leaves out, one factor per row; null where there is none.
const float* row_factors(const ConstView& x, float* out) {
  if (x.format == nullptr || (per_block(x) && !x.format->global_scale)) return nullptr;
  if (x.format->span == ScaleSpan::kRow) return static_cast<const float*>(x.scales);
  const auto* scales =
      x.format->global_scale ? x.global_scale : static_cast<const float*>(x.scales);
  const int64_t rows = x.shape[0], shared = x.rows_per_scale > 0 ? x.rows_per_scale : rows;
  for (int64_t r = 0; r < rows; ++r) out[r] = scales[r / shared];
  return out;
}

// y = a b^T * factors + bias, for a panel of b's rows.
class PanelProduct {
 public:
  PanelProduct(const MatMulArgs& args, Stream stream)
      : args_(args),
        stream_(stream),
        m_(args.y.shape[0]),
        n_(args.y.shape[1]),
        k_(args.a.shape[1]),
        few_(args.rows_per_item > 0 && args.rows_per_item < kFewRows),
        tiling_(tiling_of(m_, n_, args.rows_per_item)),
        panel_(few_ ? panel_rows(n_) : panel_rows(tiling_, m_, n_, stream.threads)) {}

  int64_t workspace() const {
    return float_workspace({std::max(m_, panel_), m_, n_, plain(args_.a) ? 0 : m_ * k_,
                            plain(args_.b) ? 0 : panel_ * k_,
                            args_.y.dtype == DType::kF32 ? 0 : m_ * panel_});
  }

  int64_t library() const {
    if (few_) return 0;
    const bool at_once = plain(args_.b) && args_.y.dtype == DType::kF32;
    return packed_bytes(m_, at_once ? n_ : std::min(n_, panel_), k_, tiling_, stream_.threads);
  }

  void run() {
    Workspace workspace(stream_);
    float* ones = workspace.floats(std::max(m_, panel_));
    std::fill_n(ones, std::max(m_, panel_), 1.0f);
    row_factors_ = row_factors(args_.a, workspace.floats(m_));
    column_factors_ = row_factors(args_.b, workspace.floats(n_));
    a_ = static_cast<const float*>(args_.a.data);
    if (!plain(args_.a)) {
      float* a = workspace.floats(m_ * k_);
      decode(args_.a, 0, m_, ones, a, stream_);
      a_ = a;
    }
    float* decoded = plain(args_.b) ? nullptr : workspace.floats(panel_ * k_);
    const bool direct = args_.y.dtype == DType::kF32;
    float* results = direct ? nullptr : workspace.floats(m_ * panel_);
    const int64_t step = decoded == nullptr && direct ? n_ : panel_;  // nothing to convert: at once
    for (int64_t first = 0; first < n_; first += step) {
      const int64_t count = std::min(step, n_ - first);
      const float* b = static_cast<const float*>(args_.b.data) + first * k_;
      if (decoded != nullptr) {
        decode(args_.b, first, count, ones, decoded, stream_);
        b = decoded;
      }
      float* y = direct ? static_cast<float*>(args_.y.data) + first : results;
      const int64_t stride = direct ? n_ : count;
      if (few_) {
        dots(b, count, y, stride);
      } else {
        gemm_in_tiles({m_, count, k_, a_, k_, b, k_, y, stride}, tiling_, stream_.threads);
      }
      finish(first, count, y, stride);
    }
  }

 private:
  // Each product alone, in a fixed order.
  void dots(const float* b, int64_t count, float* y, int64_t stride) const {
    for_rows(stream_, count, k_ * m_, [&](int64_t begin, int64_t end) {
      for (int64_t j = begin; j < end; ++j) {
        for (int64_t i = 0; i < m_; ++i) y[i * stride + j] = dot(a_ + i * k_, b + j * k_, k_);
      }
    });
  }

  // Scales, bias and the conversion to y's dtype, of columns [first, first + count).
  void finish(int64_t first, int64_t count, float* y, int64_t stride) const {
    const bool direct = args_.y.dtype == DType::kF32;
    const float* columns = column_factors_ == nullptr ? nullptr : column_factors_ + first;
    const bool scaled = row_factors_ != nullptr || columns != nullptr;
    if (direct && !scaled && args_.bias.data == nullptr && !args_.gelu) return;
    for_rows(stream_, m_, count, [&](int64_t begin, int64_t end) {
      std::array<float, 512> bias;  // a piece of it, as float
      for (int64_t c = 0; c < count; c += 512) {
        const int64_t n = std::min<int64_t>(512, count - c);
        const float* shift =
            args_.bias.data == nullptr ? nullptr : read(args_.bias, first + c, n, bias.data());
        for (int64_t i = begin; i < end; ++i) {
          float* row = y + i * stride + c;
          if (row_factors_ != nullptr) affine(row, {row_factors_[i], 0}, n, row);
          if (columns != nullptr) multiply(row, columns + c, n, row);
          if (shift != nullptr) add(row, shift, n, row);
          if (args_.gelu) apply(Function::kGelu, row, n, row);
          write(args_.y, i * n_ + first + c, n, row);
        }
      }
    });
  }

  const MatMulArgs& args_;
  Stream stream_;
  int64_t m_, n_, k_;
  bool few_;
  Tiling tiling_;
  int64_t panel_;  // rows of b at a time
  const float* a_ = nullptr;
  const float* row_factors_ = nullptr;
  const float* column_factors_ = nullptr;
};

// Gradients: b [K, N] is not transposed, so the contraction runs over its rows. Its scales lie
// along the contraction then, and are part of what is decoded.
class RowProduct {
 public:
  RowProduct(const MatMulArgs& args, Stream stream) : args_(args), stream_(stream) {}

  static int64_t workspace(const MatMulArgs& args) {
    const int64_t m = args.y.shape[0], n = args.y.shape[1], k = args.b.shape[0];
    return float_workspace({panel_rows(k), k, plain(args.a) ? 0 : m * k,
                            plain(args.b) ? 0 : panel_rows(k) * n,
                            args.y.dtype == DType::kF32 ? 0 : m * n});
  }

  static int64_t library(const MatMulArgs& args, int threads) {
    const int64_t m = args.y.shape[0], n = args.y.shape[1], k = args.b.shape[0];
    return packed_bytes(m, n, plain(args.b) ? k : panel_rows(k), tiling_of(m, n, 0), threads);
  }

  void run() {
    Workspace workspace(stream_);
    const bool turned = args_.how.transpose_a;
    const int64_t m = args_.y.shape[0], n = args_.y.shape[1], k = args_.b.shape[0];
    float* ones = workspace.floats(panel_rows(k));
    std::fill_n(ones, panel_rows(k), 1.0f);
    const float* factors = row_factors(args_.b, workspace.floats(k));
    const auto* a = static_cast<const float*>(args_.a.data);
    if (!plain(args_.a)) {
      float* converted = workspace.floats(m * k);
      decode(args_.a, 0, args_.a.shape[0], nullptr, converted, stream_);
      a = converted;
    }
    float* decoded = plain(args_.b) ? nullptr : workspace.floats(panel_rows(k) * n);
    const bool direct = args_.y.dtype == DType::kF32;
    float* y = direct ? static_cast<float*>(args_.y.data) : workspace.floats(m * n);
    const int64_t step = decoded == nullptr ? std::max<int64_t>(k, 1) : panel_rows(k);
    for (int64_t first = 0; first < k; first += step) {
      const int64_t count = std::min(step, k - first);
      const float* b = static_cast<const float*>(args_.b.data) + first * n;
      if (decoded != nullptr) {
        decode(args_.b, first, count, ones, decoded, stream_);
        if (factors != nullptr) scale_rows(decoded, count, n, factors + first);
        b = decoded;
      }
      gemm_in_tiles({m, n, count, turned ? a + first * m : a + first, turned ? m : k, b, n, y, n,
                     turned, false, 1.0f, first == 0 ? 0.0f : 1.0f},
                    tiling_of(m, n, 0), stream_.threads);
    }
    for_rows(stream_, m, n, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) write(args_.y, i * n, n, y + i * n);
    });
  }

 private:
  void scale_rows(float* rows, int64_t count, int64_t cols, const float* factors) const {
    for_rows(stream_, count, cols, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        affine(rows + r * cols, {factors[r], 0}, cols, rows + r * cols);
      }
    });
  }

  const MatMulArgs& args_;
  Stream stream_;
};

bool is_panel_product(const MatMulArgs& args) {
  return !args.how.transpose_a && args.how.transpose_b;
}

// Both operands transposed, a quantized left operand of a gradient, F64 and what graphs for this
// table do not have (sums in products) stay with the reference.
bool is_mine(const MatMulArgs& a) {
  if (a.addend.data != nullptr) return false;
  const bool floats = is_real(a.a.dtype) && a.b.dtype != DType::kF64 && is_real(a.y.dtype) &&
                      (a.bias.data == nullptr || a.bias.dtype != DType::kF64);
  if (is_panel_product(a)) return floats;
  return floats && !a.how.transpose_b && a.a.format == nullptr && a.bias.data == nullptr &&
         !a.gelu && a.b.shape[0] > 0;
}

}  // namespace

void fill_products(Kernels& table) {
  table.matmul.prefer({is_mine,
                       [](const MatMulArgs& a, Stream s) {
                         if (a.y.shape.numel() == 0) return;
                         is_panel_product(a) ? PanelProduct(a, s).run() : RowProduct(a, s).run();
                       },
                       [](const MatMulArgs& a, const Stream& s) -> int64_t {
                         if (a.y.shape.numel() == 0) return 0;
                         return is_panel_product(a) ? PanelProduct(a, s).workspace()
                                                    : RowProduct::workspace(a);
                       },
                       /*reference=*/false, /*prepare=*/nullptr,
                       [](const MatMulArgs& a, const Stream& s) -> int64_t {
                         if (a.y.shape.numel() == 0) return 0;
                         return is_panel_product(a) ? PanelProduct(a, s).library()
                                                    : RowProduct::library(a, s.threads);
                       }});
  fill_attention(table);
  fill_attention_grad(table);
}

}  // namespace halftone::fast
