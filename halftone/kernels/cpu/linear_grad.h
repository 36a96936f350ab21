// The input gradient of a linear whose weight is quantized, made of a table's own kernels: dy and
// the weight as the floats that their codes stand for, and a product of these.
#pragma once

#include <algorithm>

#include "halftone/base/threads.h"
#include "halftone/kernels/kernels.h"
#include "halftone/kernels/workspace.h"
#include "halftone/numerics/bf16.h"

namespace halftone {

template <const Kernels& (*kTable)()>
class LinearInputGrad {
 public:
  static void fill(Kernels& table) {
    table.linear_input_grad = {
        [](const LinearInputGradArgs& a) {
          const bool floats = a.dy.dtype == DType::kF32 || a.dy.dtype == DType::kBF16;
          const bool by_row = a.gradients == nullptr || a.gradients->span == ScaleSpan::kRow;
          return floats && by_row && a.weight.format != nullptr && !a.weight.format->swizzled &&
                 kTable().matmul.supports(plain_product(a));
        },
        [](const LinearInputGradArgs& a, Stream s) { LinearInputGrad(a, s).run(); },
        [](const LinearInputGradArgs& a, const Stream& s) {
          return LinearInputGrad(a, s).workspace_bytes();
        }};
  }

 private:
  LinearInputGrad(const LinearInputGradArgs& args, const Stream& stream)
      : args_(args),
        stream_(stream),
        m_(args.dy.shape[0]),
        n_(args.weight.shape[0]),
        k_(args.weight.shape[1]) {}

  static MatMulArgs plain_product(const LinearInputGradArgs& a) {
    return {{false, false}, a.dy, a.weight, {}, a.dx, 0, false, a.addend};
  }
  MatMulArgs rounded_product(const float* dy, const float* weight) const {
    return {{false, false},
            {dy, DType::kF32, {m_, n_}},
            {weight, DType::kF32, {n_, k_}},
            {},
            args_.dx,
            0,
            false,
            args_.addend};
  }
  bool by_blocks() const { return args_.weight.format->span == ScaleSpan::kBlock; }
  bool by_rows() const { return args_.weight.format->span == ScaleSpan::kRow; }

  int64_t workspace_bytes() const {
    if (args_.gradients == nullptr) return kTable().matmul.workspace(plain_product(args_), stream_);
    return float_workspace({m_ * n_, m_, n_ * k_, by_blocks() ? k_ : 1}) + aligned_bytes(m_ * n_) +
           (by_blocks() ? aligned_bytes(n_ * k_) : 0) +
           kTable().matmul.workspace(rounded_product(nullptr, nullptr), stream_);
  }

  void run() {
    if (args_.gradients == nullptr) return kTable().matmul.launch(plain_product(args_), stream_);
    Workspace workspace(stream_);
    float* dy = workspace.floats(m_ * n_);
    float* scales = workspace.floats(m_);
    float* weight = workspace.floats(n_ * k_);
    float* weight_scales = workspace.floats(by_blocks() ? k_ : 1);
    auto* codes = reinterpret_cast<uint8_t*>(workspace.bytes(m_ * n_));
    widen(dy);
    quantize({dy, DType::kF32, m_, n_, n_}, false, *args_.gradients, codes, scales);
    dequantize(*args_.gradients, codes, scales, nullptr, false, {dy, DType::kF32, m_, n_, n_});
    decode_weight(weight, weight_scales, workspace);
    kTable().matmul.launch(rounded_product(dy, weight), workspace.rest(stream_));
  }

  // dy as floats, with the weight's row scales.
  void widen(float* to) const {
    const auto* scales = by_rows() ? static_cast<const float*>(args_.weight.scales) : nullptr;
    parallel_for(stream_.threads, m_, std::max<int64_t>(1, 4096 / std::max<int64_t>(n_, 1)),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t r = begin; r < end; ++r) {
                     for (int64_t c = 0; c < n_; ++c) {
                       const int64_t i = r * n_ + c;
                       const float v = args_.dy.dtype == DType::kF32
                                           ? static_cast<const float*>(args_.dy.data)[i]
                                           : to_float(static_cast<const bf16*>(args_.dy.data)[i]);
                       to[i] = scales == nullptr ? v : v * scales[c];
                     }
                   }
                 });
  }

  void decode_weight(float* to, float* scales, Workspace& workspace) const {
    const Format& f = *args_.weight.format;
    const auto* codes = static_cast<const uint8_t*>(args_.weight.data);
    const Matrix y{to, DType::kF32, n_, k_, k_};
    if (by_rows()) {  // its scales are in dy
      Format unscaled = f;
      unscaled.span = ScaleSpan::kTensor;
      *scales = 1;
      return dequantize(unscaled, codes, scales, nullptr, false, y);
    }
    dequantize(f, codes, args_.weight.scales, args_.weight.global_scale, false, y);
    if (!by_blocks()) return;
    auto* turned = reinterpret_cast<uint8_t*>(workspace.bytes(n_ * k_));
    quantize({to, DType::kF32, n_, k_, k_}, true, formats::fp8, turned, scales);
    dequantize(formats::fp8, turned, scales, nullptr, true, y);
  }

  void quantize(const ConstMatrix& x, bool transpose, const Format& format, uint8_t* codes,
                float* scales) const {
    QuantizeArgs args;
    args.x = x;
    args.transpose = transpose;
    args.format = format;
    args.codes = codes;
    args.scales = scales;
    kTable().quantize.launch(args, stream_);
  }
  void dequantize(const Format& format, const uint8_t* codes, const void* scales,
                  const float* global_scale, bool transpose, const Matrix& y) const {
    kTable().dequantize.launch({format, codes, scales, global_scale, transpose, y}, stream_);
  }

  const LinearInputGradArgs& args_;
  Stream stream_;
  int64_t m_, n_, k_;
};

}  // namespace halftone
