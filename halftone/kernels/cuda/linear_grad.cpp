// The input gradient of a linear whose weight is quantized. In high precision: a product with what
// the weight stands for, in BF16. In 8 bits: FP8 products read both operands along the sum, so the
// weight's codes are turned round each time; that costs a few percent of the product, where a
// second copy would cost as much memory as the weight.
#include "halftone/kernels/cuda/backend.h"
#include "halftone/kernels/cuda/context.h"
#include "halftone/kernels/cuda/product_kernels.h"
#include "halftone/kernels/workspace.h"

namespace halftone::cuda {
namespace {

class LinearInputGrad {
 public:
  LinearInputGrad(const LinearInputGradArgs& args, const Stream& stream)
      : args_(args),
        stream_(stream),
        m_(args.dy.shape[0]),
        n_(args.weight.shape[0]),
        k_(args.weight.shape[1]) {}

  int64_t workspace_bytes() const {
    int64_t own = 0, within = 0;
    const auto needs = [&](int64_t bytes) { within = std::max(within, bytes); };
    if (args_.gradients == nullptr) {
      if (decodes()) own = aligned_bytes(n_ * k_ * 2);
      needs(cuda_kernels().matmul.workspace(plain_product(nullptr), stream_));
      return own + within;
    }
    own = aligned_bytes(m_ * n_) + aligned_bytes(n_ * k_) + float_workspace({m_, k_});
    if (by_blocks()) {
      own += aligned_bytes(n_ * k_ * 2);
      needs(cuda_kernels().quantize.workspace(turned({}, nullptr, nullptr), stream_));
    }
    needs(cuda_kernels().matmul.workspace(rounded_product({}), stream_));
    return own + within;
  }

  void run() const {
    if (args_.dx.shape.numel() == 0) return;
    Workspace workspace(stream_);
    if (args_.gradients == nullptr) {
      const void* weight = decodes() ? decoded(workspace) : nullptr;
      cuda_kernels().matmul.launch(plain_product(weight), workspace.rest(stream_));
      return;
    }
    Operands operands;
    operands.dy = workspace.bytes(m_ * n_);
    operands.dy_scales = workspace.floats(m_);
    operands.weight = workspace.bytes(n_ * k_);
    operands.weight_scales = workspace.floats(k_);
    round_dy(operands);
    turn_weight(operands, workspace);
    cuda_kernels().matmul.launch(rounded_product(operands), workspace.rest(stream_));
  }

 private:
  struct Operands {
    std::byte *dy = nullptr, *weight = nullptr;  // codes [M, N] and [K, N]
    float *dy_scales = nullptr, *weight_scales = nullptr;
  };

  bool by_blocks() const { return args_.weight.format->span == ScaleSpan::kBlock; }
  bool by_rows() const { return args_.weight.format->span == ScaleSpan::kRow; }
  const Format* turned_format() const {
    const bool e5m2 = !by_blocks() && args_.weight.format->element == ElementType::kE5M2;
    return e5m2 ? &formats::fp8_e5m2 : &formats::fp8;
  }
  // F32 gradients are multiplied in F32, as other products of F32 are.
  bool decodes() const { return args_.dy.dtype == DType::kBF16; }

  const bf16* decoded(Workspace& workspace) const {
    auto* values = reinterpret_cast<bf16*>(workspace.bytes(n_ * k_ * 2));
    const ConstView& w = args_.weight;
    cuda_kernels().dequantize.launch({*w.format,
                                      static_cast<const uint8_t*>(w.data),
                                      w.scales,
                                      w.global_scale,
                                      false,
                                      {values, DType::kBF16, n_, k_, k_}},
                                     stream_);
    return values;
  }

  MatMulArgs plain_product(const void* weight) const {
    const ConstView values{weight, DType::kBF16, {n_, k_}};
    return {{false, false}, args_.dy,    decodes() ? values : args_.weight, {}, args_.dx, 0,
            false,          args_.addend};
  }
  MatMulArgs rounded_product(const Operands& from) const {
    const ConstView dy{from.dy, args_.dy.dtype, {m_, n_}, args_.gradients, from.dy_scales};
    const ConstView weight{
        from.weight, args_.dy.dtype, {k_, n_}, turned_format(), from.weight_scales};
    return {{false, true}, dy, weight, {}, args_.dx, 0, false, args_.addend};
  }
  QuantizeArgs turned(const void* values, uint8_t* codes, float* scales) const {
    QuantizeArgs args;
    args.x = {values, DType::kBF16, n_, k_, k_};
    args.transpose = true;
    args.format = formats::fp8;
    args.codes = codes;
    args.scales = scales;
    return args;
  }

  void round_dy(const Operands& to) const {
    QuantizeArgs args;
    args.x = {args_.dy.data, args_.dy.dtype, m_, n_, n_};
    args.format = *args_.gradients;
    args.codes = reinterpret_cast<uint8_t*>(to.dy);
    args.scales = to.dy_scales;
    if (by_rows()) args.column_factors = static_cast<const float*>(args_.weight.scales);
    cuda_kernels().quantize.launch(args, stream_);
  }

  void turn_weight(const Operands& to, Workspace& workspace) const {
    auto* codes = reinterpret_cast<uint8_t*>(to.weight);
    if (by_blocks()) {
      const bf16* values = decoded(workspace);
      cuda_kernels().quantize.launch(turned(values, codes, to.weight_scales),
                                     workspace.rest(stream_));
      return;
    }
    transpose_bytes(static_cast<const uint8_t*>(args_.weight.data), n_, k_, codes,
                    context_of(stream_).stream());
    if (by_rows()) {  // its scales are in dy
      cuda_kernels().fill.launch({1, {to.weight_scales, DType::kF32, {k_}}}, stream_);
      return;
    }
    CopyArgs spread;
    spread.rank = 1;
    spread.dims[0] = k_;
    spread.y_strides[0] = 1;
    spread.x = args_.weight.scales;
    spread.y = to.weight_scales;
    cuda_kernels().copy.launch(spread, stream_);
  }

  const LinearInputGradArgs& args_;
  const Stream& stream_;
  int64_t m_, n_, k_;
};

}  // namespace

void fill_linear_grad(Kernels& table) {
  table.linear_input_grad = {
      [](const LinearInputGradArgs& a) {
        const bool floats = a.dy.dtype == DType::kF32 || a.dy.dtype == DType::kBF16;
        const bool by_row = a.gradients == nullptr || a.gradients->span == ScaleSpan::kRow;
        return floats && by_row && a.weight.format != nullptr && !a.weight.format->swizzled;
      },
      [](const LinearInputGradArgs& a, Stream s) { LinearInputGrad(a, s).run(); },
      [](const LinearInputGradArgs& a, const Stream& s) {
        return LinearInputGrad(a, s).workspace_bytes();
      }};
}

}  // namespace halftone::cuda
