#include <cmath>

#include "halftone/kernels/cpu/fast/rows.h"

namespace halftone::fast {
namespace {

constexpr int64_t kLanes = 16;  // partial sums, so that the compiler can use vectors

// sum of f(x[i]) in a fixed order, in double at the end.
template <class Fn>
double sum_of(const float* x, int64_t n, const Fn& fn) {
  float lanes[kLanes] = {};
  int64_t i = 0;
  double total = 0;
  while (i + kLanes <= n) {
    // Runs are short enough that float sums stay accurate.
    const int64_t stop = std::min(i + 1024, n - (n - i) % kLanes);
    for (; i < stop; i += kLanes) {
      for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += fn(x[i + lane]);
    }
    for (float& lane : lanes) {
      total += lane;
      lane = 0;
    }
  }
  for (; i < n; ++i) total += fn(x[i]);
  return total;
}

void rms_norm(const NormArgs& args, Stream stream) {
  const int64_t cols = args.x.shape[-1], rows = args.x.shape.numel() / cols;
  const Floats weight(args.weight);
  for_rows(stream, rows, cols, [&](int64_t begin, int64_t end) {
    std::vector<float> in(static_cast<size_t>(cols)), out(static_cast<size_t>(cols));
    for (int64_t r = begin; r < end; ++r) {
      const float* x = read(args.x, r * cols, cols, in.data());
      const double squares = sum_of(x, cols, [](float v) { return v * v; });
      const auto rstd =
          static_cast<float>(1 / std::sqrt(squares / static_cast<double>(cols) + args.how.eps));
      float* y = target(args.y, r * cols, out.data());
      const float* w = weight.data();
      for (int64_t c = 0; c < cols; ++c) y[c] = x[c] * rstd * w[c];
      write(args.y, r * cols, cols, y);
    }
  });
}

// mean and 1 / standard deviation of n values.
std::pair<float, float> moments(const float* x, int64_t n, float eps) {
  const double mean = sum_of(x, n, [](float v) { return v; }) / static_cast<double>(n);
  const auto center = static_cast<float>(mean);
  const double squares = sum_of(x, n, [=](float v) { return (v - center) * (v - center); });
  return {center, static_cast<float>(1 / std::sqrt(squares / static_cast<double>(n) + eps))};
}

void layer_norm(const NormArgs& args, Stream stream) {
  const int64_t cols = args.x.shape[-1], rows = args.x.shape.numel() / cols;
  for_rows(stream, rows, cols, [&](int64_t begin, int64_t end) {
    std::vector<float> in(static_cast<size_t>(cols)), out(static_cast<size_t>(cols));
    for (int64_t r = begin; r < end; ++r) {
      const float* x = read(args.x, r * cols, cols, in.data());
      const auto [mean, rstd] = moments(x, cols, args.how.eps);
      float* y = target(args.y, r * cols, out.data());
      for (int64_t c = 0; c < cols; ++c) y[c] = (x[c] - mean) * rstd;
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
        for (int64_t i = c * plane; i < (c + 1) * plane; ++i) y[i] = x[i] * w + b;
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
