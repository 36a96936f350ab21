#include "halftone/kernels/quantize.h"

#include "halftone/base/error.h"

namespace halftone {
namespace {

ConstMatrix matrix_of(const Tensor& x) {
  if (!is_high_precision(x.dtype())) {
    throw Error(ErrorCode::kInvalidInput, "quantize", "takes F32, BF16 or F16, not {}",
                name_of(x.dtype()));
  }
  if (x.shape().rank() != 2) {
    throw Error(ErrorCode::kInvalidInput, "quantize", "takes a matrix, not shape {}", x.shape());
  }
  return {x.bytes().data(), x.dtype(), x.shape()[0], x.shape()[1], x.shape()[1]};
}

template <class Args>
void launch(const Kernel<Args>& kernel, const Args& args, Stream stream) {
  HT_ASSERT(kernel.supports(args));
  kernel.launch(args, stream);
}

}  // namespace

QuantizedTensor quantize(const Kernels& kernels, const Tensor& x, const Format& format,
                         const QuantizeOptions& options, Stream stream) {
  const ConstMatrix matrix = matrix_of(x);
  if (!format.quantized()) {
    throw Error(ErrorCode::kInvalidInput, std::string(format.name), "is not a quantized format");
  }
  if (const std::string why = why_invalid(format); !why.empty()) {
    throw Error(ErrorCode::kInvalidInput, std::string(format.name), "{}", why);
  }
  if (options.static_scale) {
    if (format.scale == ScaleType::kE8M0) {
      throw Error(ErrorCode::kInvalidInput, std::string(format.name), "has no static scale");
    }
    const float lowest = format.global_scale ? kMinGlobalScale : kMinScale;
    if (!is_positive_finite(*options.static_scale) || *options.static_scale < lowest) {
      throw Error(ErrorCode::kInvalidInput, std::string(format.name),
                  "static scale {} is not a positive normal number", *options.static_scale);
    }
  }
  QuantizedTensor q = QuantizedTensor::empty(format, x.shape(), options.axis);
  QuantizeArgs args;
  args.x = matrix;
  args.transpose = options.axis == 0;
  args.format = format;
  args.codes = reinterpret_cast<uint8_t*>(q.codes.mutable_bytes().data());
  args.scales = q.scales.mutable_bytes().data();
  if (format.global_scale) args.global_scale = q.global_scale.mutable_as<float>().data();
  args.static_scale = options.static_scale;
  args.stochastic = options.stochastic;
  launch(kernels.quantize, args, stream);
  return q;
}

DequantizeArgs dequantize_args(const QuantizedTensor& q, int64_t first_row, const Matrix& y) {
  HT_ASSERT(first_row == 0 || q.axis == 1);
  const int64_t cols = q.stored_cols();
  DequantizeArgs args;
  args.format = q.format;
  args.codes = reinterpret_cast<const uint8_t*>(q.codes.bytes().data()) +
               first_row * q.format.code_bytes(cols);
  args.scales =
      q.scales.bytes().data() + first_row * q.format.scales_per_row(cols) * q.format.scale_bytes();
  if (q.format.global_scale) args.global_scale = q.global_scale.as<float>().data();
  args.transpose = q.axis == 0;
  args.y = y;
  return args;
}

Tensor dequantize(const Kernels& kernels, const QuantizedTensor& q, DType dtype, Stream stream) {
  if (dtype != DType::kF32 && dtype != DType::kBF16) {
    throw Error(ErrorCode::kInvalidInput, "dequantize", "writes F32 or BF16, not {}",
                name_of(dtype));
  }
  Tensor y = Tensor::empty(dtype, q.shape);
  const DequantizeArgs args =
      dequantize_args(q, 0, {y.mutable_bytes().data(), dtype, q.shape[0], q.shape[1], q.shape[1]});
  launch(kernels.dequantize, args, stream);
  return y;
}

float amax(const Kernels& kernels, const Tensor& x, Stream stream) {
  float result = 0.0f;
  launch(kernels.amax, AmaxArgs{matrix_of(x), &result}, stream);
  return result;
}

}  // namespace halftone
