#include "halftone/kernels/cpu/fast/norm_rows.h"
#include "halftone/kernels/cpu/fast/rows.h"

namespace halftone::fast {
namespace {

void rms_norm(const NormArgs& args, Stream stream) {
  const int64_t cols = args.x.shape[-1], rows = args.x.shape.numel() / cols;
  const Floats weight(args.weight);
  for_rows(stream, rows, cols, [&](int64_t begin, int64_t end) {
    std::vector<float> in(static_cast<size_t>(cols)), out(static_cast<size_t>(cols));
    for (int64_t r = begin; r < end; ++r) {
      const float* x = read(args.x, r * cols, cols, in.data());
      float* y = target(args.y, r * cols, out.data());
      rms_norm_row(x, weight.data(), args.how.eps, cols, y);
      write(args.y, r * cols, cols, y);
    }
  });
}

void layer_norm(const NormArgs& args, Stream stream) {
  const int64_t cols = args.x.shape[-1], rows = args.x.shape.numel() / cols;
  for_rows(stream, rows, cols, [&](int64_t begin, int64_t end) {
    std::vector<float> in(static_cast<size_t>(cols)), out(static_cast<size_t>(cols));
    for (int64_t r = begin; r < end; ++r) {
      const float* x = read(args.x, r * cols, cols, in.data());
      float* y = target(args.y, r * cols, out.data());
      layer_norm_row(x, args.how.eps, cols, y);
      write(args.y, r * cols, cols, y);
    }
  });
}

void group_norm(const NormArgs& args, Stream stream) {
  const Shape& shape = args.x.shape;
  const int64_t plane = shape[2] * shape[3], channels = shape[1] / args.how.groups;
  const int64_t size = channels * plane, groups = shape[0] * args.how.groups;
  const Floats weight(args.weight), bias(args.bias);
  for_rows(stream, groups, size, [&](int64_t begin, int64_t end) {
    std::vector<float> in(static_cast<size_t>(size)), out(static_cast<size_t>(size));
    for (int64_t g = begin; g < end; ++g) {
      const float* x = read(args.x, g * size, size, in.data());
      const auto [mean, rstd] = moments(x, size, args.how.eps);
      float* y = target(args.y, g * size, out.data());
      for (int64_t c = 0; c < channels; ++c) {
        const int64_t channel = g % args.how.groups * channels + c;
        const float w = weight[channel] * rstd, b = bias[channel] - mean * w;
        affine(x + c * plane, {w, b}, plane, y + c * plane);
      }
      write(args.y, g * size, size, y);
    }
  });
}

}  // namespace

void fill_norms(Kernels& table) {
  table.rms_norm.launch = [](const NormArgs& a, Stream s) {
    is_real(a.x.dtype) && a.weight.dtype != DType::kF64
        ? rms_norm(a, s)
        : cpu_scalar_kernels().rms_norm.launch(a, s);
  };
  table.layer_norm.launch = [](const NormArgs& a, Stream s) {
    is_real(a.x.dtype) ? layer_norm(a, s) : cpu_scalar_kernels().layer_norm.launch(a, s);
  };
  table.group_norm.launch = [](const NormArgs& a, Stream s) {
    is_real(a.x.dtype) && a.weight.dtype != DType::kF64
        ? group_norm(a, s)
        : cpu_scalar_kernels().group_norm.launch(a, s);
  };
}

}  // namespace halftone::fast
