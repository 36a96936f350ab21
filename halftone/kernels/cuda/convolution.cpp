// Convolutions: cuDNN where it takes the problem, plain kernels elsewhere, and for gradients of
// what has its channels first.
#include "halftone/kernels/cuda/backend.h"
#include "halftone/kernels/cuda/convolution_kernels.h"
#include "halftone/kernels/cuda/cudnn_channels_last.h"
#include "halftone/kernels/cuda/cudnn_convolution.h"
#include "halftone/kernels/layouts.h"
#include "halftone/kernels/workspace.h"

namespace halftone::cuda {
namespace {

bool readable(const ConstView& x) { return x.format == nullptr && is_high_precision(x.dtype); }
bool missing_or_readable(const ConstView& x) { return x.data == nullptr || readable(x); }
bool writable(const View& y) { return y.dtype == DType::kF32 || y.dtype == DType::kBF16; }

template <class Args>
std::optional<int64_t> last_workspace(const Args& args, const Stream& stream) {
  if (!cudnn_takes_last(args)) return std::nullopt;
  return context_of(stream).part<LastConvolutionPlans>().workspace(args);
}

std::optional<int64_t> first_workspace(const ConvArgs& args, const Stream& stream) {
  if (!cudnn_takes(args)) return std::nullopt;
  return context_of(stream).part<ConvolutionPlans>().workspace(args);
}

// ---- floats with channels last that cuDNN only takes with channels first ------------------------

// One item with channels first, somewhere else, and without what is added behind it.
ConvArgs turned(const ConvArgs& args, void* x, void* y) {
  const PictureLayout from(args.x.shape, true), to(args.y.shape, true);
  ConvArgs first = args;
  first.how.channels_last = first.how.shifts = first.how.adds = false;
  first.x.data = x;
  first.x.shape = picture_shape(1, from.channels, from.height, from.width, false);
  first.y.data = y;
  first.y.shape = picture_shape(1, to.channels, to.height, to.width, false);
  first.bias = first.shift = first.addend = {};
  return first;
}

// One item of x as y, which has its channels elsewhere.
void turn(const void* x, const PictureLayout& from, void* y, const PictureLayout& to,
          const Stream& stream) {
  CopyArgs copy;
  copy.rank = 4;
  copy.x = x;
  copy.y = y;
  // In the order of y's memory.
  if (to.channel == 1) {
    copy.dims = {1, to.height, to.width, to.channels};
    copy.x_strides = {from.item, from.row, from.column, from.channel};
    copy.y_strides = {to.item, to.row, to.column, to.channel};
  } else {
    copy.dims = {1, to.channels, to.height, to.width};
    copy.x_strides = {from.item, from.channel, from.row, from.column};
    copy.y_strides = {to.item, to.channel, to.row, to.column};
  }
  cuda_kernels().copy.launch(copy, stream);
}

std::optional<int64_t> turned_workspace(const ConvArgs& args, const Stream& stream) {
  if (!args.how.channels_last || args.x.dtype != DType::kF32 || args.y.dtype != DType::kF32 ||
      args.y.shape.numel() == 0) {
    return std::nullopt;
  }
  const auto bytes = first_workspace(turned(args, nullptr, nullptr), stream);
  if (!bytes) return std::nullopt;
  const int64_t items = args.x.shape[0];
  return *bytes + float_workspace({args.x.shape.numel() / items, args.y.shape.numel() / items});
}

// Item by item: a picture's bits do not depend on its batch.
void run_turned(const ConvArgs& args, const Stream& stream) {
  const int64_t items = args.x.shape[0];
  const int64_t x_item = args.x.shape.numel() / items, y_item = args.y.shape.numel() / items;
  Workspace workspace(stream);
  float* x = workspace.floats(x_item);
  float* y = workspace.floats(y_item);
  const ConvArgs first = turned(args, x, y);
  const Stream rest = workspace.rest(stream);
  const bool finishes =
      args.bias.data != nullptr || args.shift.data != nullptr || args.addend.data != nullptr;
  for (int64_t b = 0; b < items; ++b) {
    auto* to = static_cast<float*>(args.y.data) + b * y_item;
    turn(static_cast<const float*>(args.x.data) + b * x_item, {args.x.shape, true}, x,
         {first.x.shape, false}, stream);
    context_of(stream).part<ConvolutionPlans>().run(first, rest);
    turn(y, {first.y.shape, false}, to, {args.y.shape, true}, stream);
    if (!finishes) continue;
    finish_convolution({to, args.y.shape[3], args.y, b, args.bias, args.shift, args.addend},
                       context_of(stream).stream());
  }
}

// ---- the table ----------------------------------------------------------------------------------

bool supports_conv2d(const ConvArgs& a) {
  return readable(a.x) && readable(a.weight) && missing_or_readable(a.bias) &&
         missing_or_readable(a.shift) && missing_or_readable(a.addend) && writable(a.y);
}

int64_t conv2d_workspace(const ConvArgs& args, const Stream& stream) {
  if (const auto bytes = last_workspace(args, stream)) return *bytes;
  if (const auto bytes = turned_workspace(args, stream)) return *bytes;
  return first_workspace(args, stream).value_or(0);
}

void conv2d(const ConvArgs& args, Stream stream) {
  if (last_workspace(args, stream)) {
    context_of(stream).part<LastConvolutionPlans>().run(args, stream);
  } else if (turned_workspace(args, stream)) {
    run_turned(args, stream);
  } else if (first_workspace(args, stream)) {
    context_of(stream).part<ConvolutionPlans>().run(args, stream);
  } else {
    plain_conv2d(args, context_of(stream).stream());
  }
}

void prepare_conv2d(const ConvArgs& args, const Stream& stream, PreparationList& work) {
  if (cudnn_takes_last(args)) context_of(stream).part<LastConvolutionPlans>().prepare(args, work);
  if (cudnn_takes(args)) context_of(stream).part<ConvolutionPlans>().prepare(args, work);
}

template <class Args>
int64_t grad_workspace(const Args& args, const Stream& stream) {
  return last_workspace(args, stream).value_or(0);
}

template <class Args>
void prepare_grad(const Args& args, const Stream& stream, PreparationList& work) {
  if (cudnn_takes_last(args)) context_of(stream).part<LastConvolutionPlans>().prepare(args, work);
}

bool supports_input_grad(const ConvInputGradArgs& a) {
  return readable(a.dy) && readable(a.weight) && writable(a.dx);
}

void conv2d_input_grad(const ConvInputGradArgs& args, Stream stream) {
  if (last_workspace(args, stream)) {
    context_of(stream).part<LastConvolutionPlans>().run(args, stream);
  } else {
    plain_conv2d_input_grad(args, context_of(stream).stream());
  }
}

bool supports_weight_grad(const ConvWeightGradArgs& a) {
  return readable(a.dy) && readable(a.x) && writable(a.dweight);
}

void conv2d_weight_grad(const ConvWeightGradArgs& args, Stream stream) {
  if (last_workspace(args, stream)) {
    context_of(stream).part<LastConvolutionPlans>().run(args, stream);
  } else {
    plain_conv2d_weight_grad(args, context_of(stream).stream());
  }
}

}  // namespace

void fill_convolution(Kernels& table) {
  table.channels_last = true;
  table.conv2d =
      KernelEntry<ConvArgs>{supports_conv2d, conv2d, conv2d_workspace, false, prepare_conv2d};
  table.conv2d_input_grad = KernelEntry<ConvInputGradArgs>{supports_input_grad, conv2d_input_grad,
                                                           grad_workspace<ConvInputGradArgs>, false,
                                                           prepare_grad<ConvInputGradArgs>};
  table.conv2d_weight_grad = KernelEntry<ConvWeightGradArgs>{
      supports_weight_grad, conv2d_weight_grad, grad_workspace<ConvWeightGradArgs>, false,
      prepare_grad<ConvWeightGradArgs>};
}

}  // namespace halftone::cuda
