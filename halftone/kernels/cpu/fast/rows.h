// What the fast CPU kernels share: arrays read and written as float, whatever they are stored in,
// and work dealt to threads by rows. Every row is computed alone, in an order that does not depend
// on how many rows there are, so a picture does not depend on its batch.
#pragma once

#include <algorithm>
#include <cstring>

#include "halftone/base/threads.h"
#include "halftone/kernels/cpu/fast/row_math.h"
#include "halftone/kernels/kernels.h"
#include "halftone/kernels/workspace.h"
#include "halftone/numerics/bf16.h"

namespace halftone::fast {

inline bool is_real(DType dtype) { return dtype == DType::kF32 || dtype == DType::kBF16; }

// n values from element `offset` on: in place for F32, converted into `buffer` otherwise.
inline const float* read(const void* data, DType dtype, int64_t offset, int64_t n, float* buffer) {
  if (dtype == DType::kF32) return static_cast<const float*>(data) + offset;
  if (dtype == DType::kBF16) {
    widen(static_cast<const bf16*>(data) + offset, n, buffer);
  } else {
    const auto* source = static_cast<const fp16*>(data) + offset;
    for (int64_t i = 0; i < n; ++i) buffer[i] = to_float(source[i]);
  }
  return buffer;
}
inline const float* read(const ConstView& x, int64_t offset, int64_t n, float* buffer) {
  return read(x.data, x.dtype, offset, n, buffer);
}

// Where n results go: the array itself for F32, otherwise `buffer`, to be handed to write().
inline float* target(const View& y, int64_t offset, float* buffer) {
  return y.dtype == DType::kF32 ? static_cast<float*>(y.data) + offset : buffer;
}
inline void write(const View& y, int64_t offset, int64_t n, const float* values) {
  if (y.dtype == DType::kF32) return;
  narrow(values, n, static_cast<bf16*>(y.data) + offset);
}

// A whole array as float, converted if it must be; small ones (weights of norms, tables).
class Floats {
 public:
  Floats(const ConstView& x, Workspace& workspace) {
    if (x.data == nullptr) return;
    float* buffer = x.dtype == DType::kF32 ? nullptr : workspace.floats(x.shape.numel());
    data_ = read(x, 0, x.shape.numel(), buffer);
  }
  static int64_t workspace(const ConstView& x) {
    return x.data == nullptr || x.dtype == DType::kF32 ? 0 : float_workspace({x.shape.numel()});
  }
  const float* data() const { return data_; }
  float operator[](int64_t i) const { return data_[i]; }

 private:
  const float* data_ = nullptr;
};

inline constexpr int64_t kPiece = 1024;               // values worked on at a time, on the stack
inline constexpr int64_t kValuesPerThread = 1 << 14;  // below this a thread is not worth waking

// body(first row, last row) over rows of `cols` values.
template <class Body>
void for_rows(Stream stream, int64_t rows, int64_t cols, const Body& body) {
  const int64_t grain = std::max<int64_t>(1, kValuesPerThread / std::max<int64_t>(cols, 1));
  parallel_for(stream.threads, rows, grain, body);
}

// One row of x and one of y as float for every thread, where they are stored in something else.
class RowBuffers {
 public:
  RowBuffers(const ConstView& x, const View& y, int64_t cols, Stream stream, Workspace& workspace)
      : stream_(stream), cols_(cols) {
    if (x.dtype != DType::kF32) in_ = workspace.floats(threads(stream) * cols);
    if (y.dtype != DType::kF32) out_ = workspace.floats(threads(stream) * cols);
  }
  static int64_t workspace(const ConstView& x, const View& y, int64_t cols, const Stream& stream) {
    const int64_t floats = threads(stream) * cols;
    return float_workspace(
        {x.dtype == DType::kF32 ? 0 : floats, y.dtype == DType::kF32 ? 0 : floats});
  }

  // body(row, buffer for x, buffer for y)
  template <class Body>
  void for_rows(int64_t rows, const Body& body) const {
    const int64_t grain = std::max<int64_t>(1, kValuesPerThread / std::max<int64_t>(cols_, 1));
    const int64_t workers = std::min(threads(stream_), (rows + grain - 1) / grain);
    parallel_for(stream_.threads, workers, 1, [&](int64_t begin, int64_t end) {
      for (int64_t w = begin; w < end; ++w) {
        float* in = in_ == nullptr ? nullptr : in_ + w * cols_;
        float* out = out_ == nullptr ? nullptr : out_ + w * cols_;
        for (int64_t r = rows * w / workers; r < rows * (w + 1) / workers; ++r) body(r, in, out);
      }
    });
  }

 private:
  static int64_t threads(const Stream& stream) { return std::max(stream.threads, 1); }

  Stream stream_;
  int64_t cols_;
  float *in_ = nullptr, *out_ = nullptr;
};

void fill_adamw(Kernels& table);
void fill_elementwise(Kernels& table);
void fill_norms(Kernels& table);
void fill_tokens(Kernels& table);
void fill_norm_grads(Kernels& table);
void fill_sums(Kernels& table);
void fill_fused(Kernels& table);
void fill_products(Kernels& table);
void fill_convolution_products(Kernels& table);
void fill_convolution(Kernels& table);  // where the build has oneDNN
void fill_attention(Kernels& table);
void fill_attention_grad(Kernels& table);

}  // namespace halftone::fast
