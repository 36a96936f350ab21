// Convolutions: cuDNN forward where it takes the problem, plain kernels elsewhere and for
// gradients.
#include "halftone/kernels/cuda/convolution_kernels.h"
#include "halftone/kernels/cuda/cudnn_convolution.h"

namespace halftone::cuda {
namespace {

bool readable(const ConstView& x) { return x.format == nullptr && is_high_precision(x.dtype); }
bool writable(const View& y) { return y.dtype == DType::kF32 || y.dtype == DType::kBF16; }

std::optional<int64_t> cudnn_workspace(const ConvArgs& args, const Stream& stream) {
  if (!cudnn_takes(args)) return std::nullopt;
  return context_of(stream).part<ConvolutionPlans>().workspace(args);
}

bool supports_conv2d(const ConvArgs& a) {
  return readable(a.x) && readable(a.weight) && (a.bias.data == nullptr || readable(a.bias)) &&
         writable(a.y);
}

int64_t conv2d_workspace(const ConvArgs& args, const Stream& stream) {
  return cudnn_workspace(args, stream).value_or(0);
}

void conv2d(const ConvArgs& args, Stream stream) {
  if (cudnn_workspace(args, stream)) {
    context_of(stream).part<ConvolutionPlans>().run(args, stream);
  } else {
    plain_conv2d(args, context_of(stream).stream());
  }
}

void prepare_conv2d(const ConvArgs& args, const Stream& stream, PreparationList& work) {
  if (cudnn_takes(args)) context_of(stream).part<ConvolutionPlans>().prepare(args, work);
}

bool supports_input_grad(const ConvInputGradArgs& a) {
  return readable(a.dy) && readable(a.weight) && writable(a.dx);
}

void conv2d_input_grad(const ConvInputGradArgs& args, Stream stream) {
  plain_conv2d_input_grad(args, context_of(stream).stream());
}

bool supports_weight_grad(const ConvWeightGradArgs& a) {
  return readable(a.dy) && readable(a.x) && writable(a.dweight);
}

void conv2d_weight_grad(const ConvWeightGradArgs& args, Stream stream) {
  plain_conv2d_weight_grad(args, context_of(stream).stream());
}

}  // namespace

void fill_convolution(Kernels& table) {
  table.conv2d =
      KernelEntry<ConvArgs>{supports_conv2d, conv2d, conv2d_workspace, false, prepare_conv2d};
  table.conv2d_input_grad = {supports_input_grad, conv2d_input_grad, nullptr};
  table.conv2d_weight_grad = {supports_weight_grad, conv2d_weight_grad, nullptr};
}

}  // namespace halftone::cuda
