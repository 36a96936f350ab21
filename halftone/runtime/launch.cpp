#include "halftone/runtime/launch.h"

#include <algorithm>

#include "halftone/base/error.h"
#include "halftone/graph/catalogue.h"

namespace halftone {
namespace {

std::string describe(std::span<const ConstView> inputs) {
  std::string what;
  for (const ConstView& x : inputs) {
    what += fmt::format("{}{} {}", what.empty() ? "" : ", ",
                        x.format != nullptr ? x.format->name : name_of(x.dtype), x.shape);
  }
  return what;
}

// What is done with a kernel and its arguments.
class Launch {
 public:
  Launch(const Node& node, std::span<const ConstView> inputs, Stream stream)
      : node_(node), inputs_(inputs), stream_(stream) {}
  template <class Args>
  void operator()(const Kernel<Args>& kernel, const Args& args) const {
    const KernelEntry<Args>* chosen = kernel.choose(args);
    if (chosen == nullptr) {
      throw Error(ErrorCode::kUnsupported, std::string(op_info(node_.op).name),
                  "there is no kernel for {}", describe(inputs_));
    }
    chosen->launch(args, stream_);
  }

 private:
  const Node& node_;
  std::span<const ConstView> inputs_;
  Stream stream_;
};

class Plan {
 public:
  Plan(const Node& node, std::span<const ConstView> inputs, const Stream& stream)
      : node_(node), inputs_(inputs), stream_(stream) {}
  template <class Args>
  void operator()(const Kernel<Args>& kernel, const Args& args) {
    if (!kernel.supports(args)) return;  // said when it is launched
    plan_.workspace = std::max(plan_.workspace, kernel.workspace(args, stream_));
    plan_.library = std::max(plan_.library, kernel.library(args, stream_));
    if (kernel.stands_in(args)) {
      plan_.note = fmt::format(
          "{}: a plain reference stands in for faster kernels, which do not "
          "take {}",
          op_info(node_.op).name, describe(inputs_));
    }
  }
  const LaunchPlan& plan() const { return plan_; }

 private:
  const Node& node_;
  std::span<const ConstView> inputs_;
  const Stream& stream_;
  LaunchPlan plan_;
};

class Prepare {
 public:
  Prepare(const Stream& stream, PreparationList& work) : stream_(stream), work_(work) {}
  template <class Args>
  void operator()(const Kernel<Args>& kernel, const Args& args) {
    const KernelEntry<Args>* chosen = kernel.choose(args);
    if (chosen != nullptr && chosen->prepare != nullptr) chosen->prepare(args, stream_, work_);
  }

 private:
  const Stream& stream_;
  PreparationList& work_;
};

// A matrix of rows along the last dimension.
template <class AnyView>
AnyView rows_of(AnyView x) {
  x.shape = {x.shape.numel() / x.shape[-1], x.shape[-1]};
  return x;
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

template <class Visit>
void concat_parts(const AxisAttributes& how, std::span<const ConstView> parts, const View& y,
                  const Kernels& kernels, Visit& visit) {
  int64_t begin = 0;
  for (const ConstView& part : parts) {
    CopyArgs args = copy_of(part, y, part.shape);
    args.y = advance(y.data, y.dtype, begin * args.y_strides[how.axis]);
    if (args.x != args.y) visit(kernels.copy, args);  // otherwise it was computed there
    begin += part.shape[how.axis];
  }
}

CopyArgs pad_args(const AxisAttributes& how, const ConstView& x, const View& y) {
  CopyArgs args = copy_of(x, y, x.shape);
  args.y = advance(y.data, y.dtype, how.begin * args.y_strides[how.axis]);
  return args;
}

CopyArgs slice_args(const AxisAttributes& how, const ConstView& x, const View& y) {
  CopyArgs args = copy_of(x, y, y.shape);
  args.x = advance(x.data, x.dtype, how.begin * args.x_strides[how.axis]);
  return args;
}

// x [B, ..., K]: the first dimension is the batch.
MatMulArgs linear_args(const ConstView& x, const ConstView& weight, const ConstView& bias,
                       const ConstView& addend, const View& y, bool gelu) {
  const int64_t items = batch_items(x.shape);
  const int64_t per_item =
      x.shape.rank() < 2 || items == 0 ? 1 : x.shape.numel() / x.shape[-1] / items;
  return {{false, true}, rows_of(x), weight, bias, rows_of(y), per_item, gelu, addend};
}

// Without what is added to the whole: x, weight, and a bias and shifts where there are such.
ConvArgs conv_args(const ConvAttributes& how, std::span<const ConstView> in,
                   const ConstView& addend, const View& y) {
  ConvArgs args{how, in[0], in[1], {}, y};
  args.addend = addend;
  if (how.shifts) {
    args.shift = in.back();
    in = in.first(in.size() - 1);
  }
  if (in.size() > 2) args.bias = in[2];
  return args;
}

// All rows at once, or item by item where a scale spans the rows of one.
template <class Visit>
void quantize_items(const ConstView& input, const View& output, float static_scale,
                    const Kernels& kernels, Visit& visit) {
  const ConstView x = rows_of(input);
  const View y = rows_of(output);
  const Format& f = *y.format;
  const bool spans_rows =
      (f.span == ScaleSpan::kTensor || f.global_scale) && !f.static_scale && x.shape[0] > 0;
  const int64_t cols = x.shape[1];
  const int64_t rows = spans_rows ? y.rows_per_scale : x.shape[0];
  for (int64_t first = 0; first < x.shape[0]; first += rows) {
    QuantizeArgs args;
    args.x = {advance(x.data, x.dtype, first * cols), x.dtype, rows, cols, cols};
    args.format = f;
    args.codes = static_cast<uint8_t*>(y.data) + first * f.code_bytes(cols);
    const int64_t scales =
        f.span == ScaleSpan::kTensor ? first / rows : first * f.scales_per_row(cols);
    args.scales = static_cast<uint8_t*>(y.scales) + scales * f.scale_bytes();
    if (f.global_scale) args.global_scale = y.global_scale + first / rows;
    if (f.static_scale) args.static_scale = static_scale;
    visit(kernels.quantize, args);
  }
}

// The one place that maps operations to kernels: calls visit(kernel, arguments).
template <class Visit>
void dispatch(const Node& node, std::span<const ConstView> in, std::span<const View> out,
              const Kernels& kernels, Visit& visit) {
  const auto optional = [&](size_t i) { return i < in.size() ? in[i] : ConstView{}; };
  const Attributes& a = node.attributes;
  const auto norm = [&] { return std::get<NormAttributes>(a); };
  const auto axis = [&] { return std::get<AxisAttributes>(a); };
  ConstView addend;
  if (adds_operand(node)) {
    addend = in.back();
    in = in.first(in.size() - 1);
  }
  switch (node.op) {
    case Op::kAdd:
      return visit(kernels.binary, BinaryArgs{BinaryFunction::kAdd, in[0], in[1], out[0]});
    case Op::kMul:
      return visit(kernels.binary, BinaryArgs{BinaryFunction::kMul, in[0], in[1], out[0]});
    case Op::kAffine:
      return visit(kernels.affine, AffineArgs{std::get<AffineAttributes>(a), in[0], out[0]});
    case Op::kUnary:
      return visit(kernels.unary, UnaryArgs{std::get<UnaryAttributes>(a), in[0], out[0]});
    case Op::kSiluMul:
      return visit(kernels.silu_mul, SiluMulArgs{in[0], in[1], out[0]});
    case Op::kSumTo:
      return visit(kernels.sum_to, SumToArgs{in[0], out[0]});
    case Op::kBroadcast:
      return visit(kernels.copy, broadcast_args(in[0], out[0]));
    case Op::kReshape:
      return;  // shares the bytes of its input
    case Op::kPermute:
      return visit(kernels.copy, permute_args(in[0], out[0], std::get<PermuteAttributes>(a).order));
    case Op::kConcat:
      return concat_parts(axis(), in, out[0], kernels, visit);
    case Op::kSlice:
      return visit(kernels.copy, slice_args(axis(), in[0], out[0]));
    case Op::kPad:
      visit(kernels.fill, FillArgs{0, out[0]});
      return visit(kernels.copy, pad_args(axis(), in[0], out[0]));
    case Op::kCast:
      return visit(kernels.copy, copy_of(in[0], out[0], out[0].shape));
    case Op::kQuantize:
      return quantize_items(in[0], out[0], std::get<QuantizeAttributes>(a).static_scale, kernels,
                            visit);
    case Op::kLinear:
      HT_ASSERT(!std::get<LinearAttributes>(a).activations);  // lowered by now
      return visit(kernels.matmul, linear_args(in[0], in[1], optional(2), addend, out[0],
                                               std::get<LinearAttributes>(a).gelu));
    case Op::kLinearInputGrad: {
      const auto& gradients = std::get<LinearInputGradAttributes>(a).gradients;
      return visit(kernels.linear_input_grad, LinearInputGradArgs{gradients ? &*gradients : nullptr,
                                                                  in[0], in[1], out[0], addend});
    }
    case Op::kMatMul:
      return visit(
          kernels.matmul,
          MatMulArgs{std::get<MatMulAttributes>(a), in[0], in[1], {}, out[0], 0, false, addend});
    case Op::kConv2d:
      return visit(kernels.conv2d, conv_args(std::get<ConvAttributes>(a), in, addend, out[0]));
    case Op::kConv2dInputGrad:
      return visit(kernels.conv2d_input_grad,
                   ConvInputGradArgs{std::get<ConvAttributes>(a), in[0], in[1], out[0]});
    case Op::kConv2dWeightGrad:
      return visit(kernels.conv2d_weight_grad,
                   ConvWeightGradArgs{std::get<ConvAttributes>(a), in[0], in[1], out[0]});
    case Op::kRmsNorm:
      return visit(kernels.rms_norm, NormArgs{norm(), in[0], in[1], {}, out[0]});
    case Op::kRmsNormGrad:
      return visit(kernels.rms_norm_grad,
                   NormGradArgs{norm(), in[0], in[1], in[2], out[0], out[1], {}});
    case Op::kLayerNorm:
      return visit(kernels.layer_norm, NormArgs{norm(), in[0], {}, {}, out[0]});
    case Op::kLayerNormGrad:
      return visit(kernels.layer_norm_grad, NormGradArgs{norm(), in[0], in[1], {}, out[0], {}, {}});
    case Op::kGroupNorm:
      return visit(kernels.group_norm, NormArgs{norm(), in[0], in[1], in[2], out[0]});
    case Op::kGroupNormGrad:
      return visit(kernels.group_norm_grad,
                   NormGradArgs{norm(), in[0], in[1], in[2], out[0], out[1], out[2]});
    case Op::kRope:
      return visit(kernels.rope,
                   RopeArgs{std::get<RopeAttributes>(a), in[0], in[1], in[2], out[0]});
    case Op::kAttention: {
      AttentionArgs args{std::get<AttentionAttributes>(a), in[0], in[1], in[2], {}, out[0]};
      if (args.how.statistics) args.statistics = out[1];
      if (args.how.biased) {
        args.bias = in.back();
        in = in.first(in.size() - 1);
      }
      if (in.size() > 3) args.lengths = in[3];
      return visit(kernels.attention, args);
    }
    case Op::kAttentionGrad: {
      AttentionGradArgs args{
          std::get<AttentionAttributes>(a), in[0], in[1], in[2], in[3], {}, out[0], out[1], out[2]};
      if (args.how.statistics) {  // behind the others
        args.statistics = in.back();
        args.y = in[in.size() - 2];
        in = in.first(in.size() - 2);
      }
      if (args.how.biased) {
        args.bias = in.back();
        args.dbias = out[3];
        in = in.first(in.size() - 1);
      }
      if (in.size() > 4) args.lengths = in[4];
      return visit(kernels.attention_grad, args);
    }
    case Op::kEmbedding:
      return visit(kernels.embedding, EmbeddingArgs{in[0], in[1], out[0]});
    case Op::kEmbeddingGrad:
      return visit(kernels.embedding_grad, EmbeddingGradArgs{in[0], in[1], out[0]});
    case Op::kGaussian:
      return visit(kernels.gaussian, GaussianArgs{in[0], out[0]});
    case Op::kDropout:
      return visit(kernels.dropout,
                   DropoutArgs{std::get<DropoutAttributes>(a), in[0], in[1], out[0]});
    case Op::kPadRows:
      return visit(kernels.pad_rows, PadRowsArgs{in[0], in[1], in[2], out[0]});
    case Op::kPadRowsGrad:
      return visit(kernels.pad_rows_grad, PadRowsGradArgs{in[0], in[1], out[0], out[1]});
    case Op::kUpsample2x:
      return visit(kernels.upsample2x,
                   Upsample2xArgs{in[0], out[0], std::get<UpsampleAttributes>(a)});
    case Op::kFusedRows:
      return visit(kernels.fused_rows, FusedRowsArgs{&std::get<FusedRowsAttributes>(a), in, out});
    case Op::kUpsample2xGrad:
      return visit(kernels.upsample2x_grad,
                   Upsample2xArgs{in[0], out[0], std::get<UpsampleAttributes>(a)});
  }
}

}  // namespace

void launch(const Node& node, std::span<const ConstView> inputs, std::span<const View> outputs,
            const Kernels& kernels, Stream stream) {
  const Launch visit(node, inputs, stream);
  dispatch(node, inputs, outputs, kernels, visit);
}

void prepare_launch(const Node& node, std::span<const ConstView> inputs,
                    std::span<const View> outputs, const Kernels& kernels, const Stream& stream,
                    PreparationList& work) {
  Prepare visit(stream, work);
  dispatch(node, inputs, outputs, kernels, visit);
}

LaunchPlan plan_launch(const Node& node, std::span<const ConstView> inputs,
                       std::span<const View> outputs, const Kernels& kernels,
                       const Stream& stream) {
  Plan visit(node, inputs, stream);
  dispatch(node, inputs, outputs, kernels, visit);
  return visit.plan();
}

}  // namespace halftone
