#include "halftone/io/resample.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "halftone/base/error.h"

namespace halftone {
namespace {

constexpr double kLobes = 3;

double lanczos(double x) {
  if (std::abs(x) >= kLobes) return 0;
  if (x == 0) return 1;
  const double pi_x = std::numbers::pi * x;
  return kLobes * std::sin(pi_x) * std::sin(pi_x / kLobes) / (pi_x * pi_x);
}

// How one pixel of the result is made: from pixels first, first + 1, ... with these weights, whose
// sum is 1.
struct Taps {
  int64_t first = 0;
  std::vector<float> weights;
};

// From the part [begin, begin + length) of a line of `size` pixels to `count` pixels.
std::vector<Taps> taps_of(int64_t size, double begin, double length, int64_t count) {
  const double scale = length / static_cast<double>(count);
  const double filter = std::max(1.0, scale), reach = kLobes * filter;
  std::vector<Taps> taps(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    const double centre = begin + (static_cast<double>(i) + 0.5) * scale;
    const auto first = std::max<int64_t>(0, std::llround(std::floor(centre - reach)));
    const auto last = std::min<int64_t>(size - 1, std::llround(std::ceil(centre + reach)));
    std::vector<double> weights;
    double sum = 0;
    for (int64_t p = first; p <= last; ++p) {
      weights.push_back(lanczos((static_cast<double>(p) + 0.5 - centre) / filter));
      sum += weights.back();
    }
    taps[static_cast<size_t>(i)].first = first;
    for (const double weight : weights) {
      taps[static_cast<size_t>(i)].weights.push_back(static_cast<float>(weight / sum));
    }
  }
  return taps;
}

}  // namespace

Tensor resize_to_fill(const RgbImage& image, int64_t width, int64_t height) {
  HT_ASSERT(image.width > 0 && image.height > 0 && width > 0 && height > 0);
  const auto from_width = static_cast<double>(image.width);
  const auto from_height = static_cast<double>(image.height);
  const double ratio = static_cast<double>(width) / static_cast<double>(height);
  const double part_width = std::min(from_width, from_height * ratio);
  const double part_height = std::min(from_height, from_width / ratio);
  const auto across = taps_of(image.width, (from_width - part_width) / 2, part_width, width);
  const auto down = taps_of(image.height, (from_height - part_height) / 2, part_height, height);

  // Rows first, only those that the columns will look at.
  const int64_t top = down.front().first;
  const int64_t bottom = down.back().first + static_cast<int64_t>(down.back().weights.size());
  std::vector<float> rows(static_cast<size_t>((bottom - top) * width * 3));
  for (int64_t y = top; y < bottom; ++y) {
    const uint8_t* from = image.rgb.data() + y * image.width * 3;
    float* to = rows.data() + (y - top) * width * 3;
    for (int64_t x = 0; x < width; ++x) {
      const Taps& taps = across[static_cast<size_t>(x)];
      for (size_t t = 0; t < taps.weights.size(); ++t) {
        const uint8_t* pixel = from + (taps.first + static_cast<int64_t>(t)) * 3;
        for (int64_t c = 0; c < 3; ++c) to[3 * x + c] += taps.weights[t] * pixel[c];
      }
    }
  }
  Tensor result = Tensor::zeros(DType::kF32, {3, height, width});
  auto out = result.mutable_as<float>();
  for (int64_t y = 0; y < height; ++y) {
    const Taps& taps = down[static_cast<size_t>(y)];
    for (size_t t = 0; t < taps.weights.size(); ++t) {
      const float* from = rows.data() + (taps.first + static_cast<int64_t>(t) - top) * width * 3;
      for (int64_t x = 0; x < width; ++x) {
        for (int64_t c = 0; c < 3; ++c) {
          out[(c * height + y) * width + x] += taps.weights[t] * from[3 * x + c];
        }
      }
    }
  }
  // The filter overshoots at edges.
  for (float& v : out) v = std::clamp(v, 0.0f, 255.0f) / 127.5f - 1.0f;
  return result;
}

}  // namespace halftone
