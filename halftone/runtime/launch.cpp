#include "halftone/runtime/launch.h"

#include <cstring>

#include "halftone/base/error.h"
#include "halftone/graph/catalogue.h"

namespace halftone {
namespace {

template <class Args>
void run(const Kernel<Args>& kernel, const Args& args, Stream stream) {
  HT_ASSERT(kernel.supports != nullptr && kernel.supports(args));
  kernel.launch(args, stream);
}

// A matrix of rows along the last dimension.
ConstView rows_of(const ConstView& x) {
  return {x.data, x.dtype, {x.shape.numel() / x.shape[-1], x.shape[-1]}};
}
View rows_of(const View& x) {
  return {x.data, x.dtype, {x.shape.numel() / x.shape[-1], x.shape[-1]}};
}

std::array<int64_t, Shape::kMaxRank> strides_of(const Shape& shape) {
  std::array<int64_t, Shape::kMaxRank> strides{};
  int64_t stride = 1;
  for (int d = shape.rank() - 1; d >= 0; --d) {
    strides[d] = stride;
    stride *= shape[d];
  }
  return strides;
}

const void* advance(const void* data, DType dtype, int64_t elements) {
  return static_cast<const std::byte*>(data) + elements * bits_of(dtype) / 8;
}
void* advance(void* data, DType dtype, int64_t elements) {
  return static_cast<std::byte*>(data) + elements * bits_of(dtype) / 8;
}

// All of x into all of y, as they lie; each function below changes strides, dims or pointers.
CopyArgs copy_of(const ConstView& x, const View& y, const Shape& dims) {
  CopyArgs args;
  args.rank = dims.rank();
  std::copy(dims.dims().begin(), dims.dims().end(), args.dims.begin());
  args.x_strides = strides_of(x.shape);
  args.y_strides = strides_of(y.shape);
  args.x = x.data;
  args.x_dtype = x.dtype;
  args.y = y.data;
  args.y_dtype = y.dtype;
  return args;
}

CopyArgs broadcast_args(const ConstView& x, const View& y) {
  CopyArgs args = copy_of(x, y, y.shape);
  const auto own = strides_of(x.shape);
  args.x_strides = {};
  for (int i = 1; i <= x.shape.rank(); ++i) {
    if (x.shape[-i] != 1) args.x_strides[y.shape.rank() - i] = own[x.shape.rank() - i];
  }
  return args;
}

CopyArgs permute_args(const ConstView& x, const View& y, const std::vector<int>& order) {
  CopyArgs args = copy_of(x, y, y.shape);
  const auto own = strides_of(x.shape);
  for (size_t i = 0; i < order.size(); ++i) args.x_strides[i] = own[order[i]];
  return args;
}

void run_concat(const AxisAttributes& how, std::span<const ConstView> parts, const View& y,
                const Kernels& kernels, Stream stream) {
  int64_t begin = 0;
  for (const ConstView& part : parts) {
    CopyArgs args = copy_of(part, y, part.shape);
    args.y = advance(y.data, y.dtype, begin * args.y_strides[how.axis]);
    run(kernels.copy, args, stream);
    begin += part.shape[how.axis];
  }
}

void run_pad(const AxisAttributes& how, const ConstView& x, const View& y, const Kernels& kernels,
             Stream stream) {
  std::memset(y.data, 0, static_cast<size_t>(y.shape.checked_bytes(y.dtype).value()));
  CopyArgs args = copy_of(x, y, x.shape);
  args.y = advance(y.data, y.dtype, how.begin * args.y_strides[how.axis]);
  run(kernels.copy, args, stream);
}

void run_slice(const AxisAttributes& how, const ConstView& x, const View& y, const Kernels& kernels,
               Stream stream) {
  CopyArgs args = copy_of(x, y, y.shape);
  args.x = advance(x.data, x.dtype, how.begin * args.x_strides[how.axis]);
  run(kernels.copy, args, stream);
}

// x [B, ..., K]: the first dimension is the batch.
void run_linear(std::span<const ConstView> in, const ConstView& bias, const View& y,
                const Kernels& kernels, Stream stream) {
  const Shape& x = in[0].shape;
  const int64_t per_item = x.rank() < 2 || x[0] == 0 ? 1 : x.numel() / x[-1] / x[0];
  run(kernels.matmul, {{false, true}, rows_of(in[0]), in[1], bias, rows_of(y), per_item}, stream);
}

}  // namespace

void launch(const Node& node, std::span<const ConstView> in, std::span<const View> out,
            const Kernels& kernels, Stream s) {
  const auto optional = [&](size_t i) { return i < in.size() ? in[i] : ConstView{}; };
  const Attributes& a = node.attributes;
  const auto norm = [&] { return std::get<NormAttributes>(a); };
  const auto axis = [&] { return std::get<AxisAttributes>(a); };
  switch (node.op) {
    case Op::kAdd:
      return run(kernels.binary, {BinaryFunction::kAdd, in[0], in[1], out[0]}, s);
    case Op::kMul:
      return run(kernels.binary, {BinaryFunction::kMul, in[0], in[1], out[0]}, s);
    case Op::kAffine:
      return run(kernels.affine, {std::get<AffineAttributes>(a), in[0], out[0]}, s);
    case Op::kUnary:
      return run(kernels.unary, {std::get<UnaryAttributes>(a), in[0], out[0]}, s);
    case Op::kSiluMul:
      return run(kernels.silu_mul, {in[0], in[1], out[0]}, s);
    case Op::kSumTo:
      return run(kernels.sum_to, {in[0], out[0]}, s);
    case Op::kBroadcast:
      return run(kernels.copy, broadcast_args(in[0], out[0]), s);
    case Op::kReshape:
      return;  // shares the bytes of its input
    case Op::kPermute:
      return run(kernels.copy, permute_args(in[0], out[0], std::get<PermuteAttributes>(a).order),
                 s);
    case Op::kConcat:
      return run_concat(axis(), in, out[0], kernels, s);
    case Op::kSlice:
      return run_slice(axis(), in[0], out[0], kernels, s);
    case Op::kPad:
      return run_pad(axis(), in[0], out[0], kernels, s);
    case Op::kCast:
      return run(kernels.copy, copy_of(in[0], out[0], out[0].shape), s);
    case Op::kLinear:
      return run_linear(in, optional(2), out[0], kernels, s);
    case Op::kMatMul:
      return run(kernels.matmul, {std::get<MatMulAttributes>(a), in[0], in[1], {}, out[0], 0}, s);
    case Op::kConv2d:
      return run(kernels.conv2d, {std::get<ConvAttributes>(a), in[0], in[1], optional(2), out[0]},
                 s);
    case Op::kConv2dInputGrad:
      return run(kernels.conv2d_input_grad, {std::get<ConvAttributes>(a), in[0], in[1], out[0]}, s);
    case Op::kConv2dWeightGrad:
      return run(kernels.conv2d_weight_grad, {std::get<ConvAttributes>(a), in[0], in[1], out[0]},
                 s);
    case Op::kRmsNorm:
      return run(kernels.rms_norm, {norm(), in[0], in[1], {}, out[0]}, s);
    case Op::kRmsNormGrad:
      return run(kernels.rms_norm_grad, {norm(), in[0], in[1], in[2], out[0], out[1], {}}, s);
    case Op::kLayerNorm:
      return run(kernels.layer_norm, {norm(), in[0], {}, {}, out[0]}, s);
    case Op::kLayerNormGrad:
      return run(kernels.layer_norm_grad, {norm(), in[0], in[1], {}, out[0], {}, {}}, s);
    case Op::kGroupNorm:
      return run(kernels.group_norm, {norm(), in[0], in[1], in[2], out[0]}, s);
    case Op::kGroupNormGrad:
      return run(kernels.group_norm_grad, {norm(), in[0], in[1], in[2], out[0], out[1], out[2]}, s);
    case Op::kRope:
      return run(kernels.rope, {std::get<RopeAttributes>(a), in[0], in[1], in[2], out[0]}, s);
    case Op::kAttention:
      return run(kernels.attention,
                 {std::get<AttentionAttributes>(a), in[0], in[1], in[2], optional(3), out[0]}, s);
    case Op::kAttentionGrad:
      return run(kernels.attention_grad,
                 {std::get<AttentionAttributes>(a), in[0], in[1], in[2], in[3], optional(4), out[0],
                  out[1], out[2]},
                 s);
    case Op::kEmbedding:
      return run(kernels.embedding, {in[0], in[1], out[0]}, s);
    case Op::kEmbeddingGrad:
      return run(kernels.embedding_grad, {in[0], in[1], out[0]}, s);
    case Op::kPadRows:
      return run(kernels.pad_rows, {in[0], in[1], in[2], out[0]}, s);
    case Op::kPadRowsGrad:
      return run(kernels.pad_rows_grad, {in[0], in[1], out[0], out[1]}, s);
    case Op::kUpsample2x:
      return run(kernels.upsample2x, {in[0], out[0]}, s);
    case Op::kUpsample2xGrad:
      return run(kernels.upsample2x_grad, {in[0], out[0]}, s);
  }
}

}  // namespace halftone
