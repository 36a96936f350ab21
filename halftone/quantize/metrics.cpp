#include "halftone/quantize/metrics.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "halftone/base/error.h"

namespace halftone {
namespace {

constexpr int64_t kWindow = 11;

// Weights of a window of so many values, an odd number.
std::vector<double> gaussian_window(int64_t size) {
  std::vector<double> window(static_cast<size_t>(size));
  double sum = 0;
  for (int64_t i = 0; i < size; ++i) {
    const int64_t center = size / 2;
    const auto d = static_cast<double>(i - center);
    sum += window[i] = std::exp(-d * d / (2 * 1.5 * 1.5));
  }
  for (double& w : window) w /= sum;
  return window;
}

// One channel of a picture, and its weighted means over windows that lie inside.
struct Plane {
  int64_t height, width;
  std::vector<double> values;

  Plane blurred() const {
    // Pictures that are smaller than the window get the largest one that fits.
    const int64_t fits = std::min({kWindow, height, width}), size = fits - (fits + 1) % 2;
    const std::vector<double> weights = gaussian_window(size);
    const int64_t h = height - size + 1, w = width - size + 1;
    Plane rows{height, w, std::vector<double>(static_cast<size_t>(height * w), 0.0)};
    for (int64_t r = 0; r < height; ++r) {
      for (int64_t c = 0; c < w; ++c) {
        for (int64_t i = 0; i < size; ++i) {
          rows.values[r * w + c] += weights[i] * values[r * width + c + i];
        }
      }
    }
    Plane out{h, w, std::vector<double>(static_cast<size_t>(h * w), 0.0)};
    for (int64_t r = 0; r < h; ++r) {
      for (int64_t c = 0; c < w; ++c) {
        for (int64_t i = 0; i < size; ++i) {
          out.values[r * w + c] += weights[i] * rows.values[(r + i) * w + c];
        }
      }
    }
    return out;
  }
  Plane times(const Plane& other) const {
    Plane out = *this;
    for (size_t i = 0; i < values.size(); ++i) out.values[i] *= other.values[i];
    return out;
  }
};

// Values 0 to 1.
Plane channel(const Tensor& image, int64_t c) {
  const int64_t height = image.shape()[1], width = image.shape()[2];
  Plane plane{height, width, std::vector<double>(static_cast<size_t>(height * width))};
  for (int64_t i = 0; i < height * width; ++i) {
    const double unit = image.as<float>()[c * height * width + i] * 0.5 + 0.5;
    plane.values[i] = std::fmin(std::fmax(unit, 0.0), 1.0);
  }
  return plane;
}

void check_pictures(const Tensor& a, const Tensor& b) {
  HT_ASSERT(a.shape() == b.shape() && a.shape().rank() == 3 && a.dtype() == DType::kF32 &&
            b.dtype() == DType::kF32);
}

}  // namespace

double ssim(const Tensor& a, const Tensor& b) {
  check_pictures(a, b);
  constexpr double kC1 = 0.01 * 0.01, kC2 = 0.03 * 0.03;
  double sum = 0;
  int64_t count = 0;
  for (int64_t c = 0; c < a.shape()[0]; ++c) {
    const Plane x = channel(a, c), y = channel(b, c);
    const Plane mx = x.blurred(), my = y.blurred();
    const Plane xx = x.times(x).blurred(), yy = y.times(y).blurred(), xy = x.times(y).blurred();
    for (size_t i = 0; i < mx.values.size(); ++i) {
      const double u = mx.values[i], v = my.values[i];
      const double variance_x = xx.values[i] - u * u, variance_y = yy.values[i] - v * v;
      const double covariance = xy.values[i] - u * v;
      sum += (2 * u * v + kC1) * (2 * covariance + kC2) /
             ((u * u + v * v + kC1) * (variance_x + variance_y + kC2));
      ++count;
    }
  }
  return sum / static_cast<double>(count);
}

double psnr(const Tensor& a, const Tensor& b) {
  check_pictures(a, b);
  double squares = 0;
  for (int64_t c = 0; c < a.shape()[0]; ++c) {
    const Plane x = channel(a, c), y = channel(b, c);
    for (size_t i = 0; i < x.values.size(); ++i) squares += std::pow(x.values[i] - y.values[i], 2);
  }
  return -10 * std::log10(squares / static_cast<double>(a.numel()));
}

double cosine(std::span<const float> a, std::span<const float> b) {
  HT_ASSERT(a.size() == b.size());
  double ab = 0, aa = 0, bb = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    ab += double{a[i]} * b[i];
    aa += double{a[i]} * a[i];
    bb += double{b[i]} * b[i];
  }
  return aa == 0 || bb == 0 ? (aa == bb ? 1 : 0) : ab / std::sqrt(aa * bb);
}

double relative_difference(std::span<const float> a, std::span<const float> reference) {
  HT_ASSERT(a.size() == reference.size());
  double difference = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(double{a[i]} - reference[i], 2);
    norm += std::pow(double{reference[i]}, 2);
  }
  return norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference);
}

}  // namespace halftone
