#include "halftone/nn/rope_axes.h"

#include <algorithm>
#include <cmath>

namespace halftone::nn {

RopeAxes::RopeAxes(double theta, std::span<const int64_t> dims, AnglePrecision precision)
    : precision_(precision), axes_(dims.size()) {
  for (size_t axis = 0; axis < dims.size(); ++axis) {
    for (int64_t i = 0; i < dims[axis]; i += 2) {
      const double exponent = static_cast<double>(i) / static_cast<double>(dims[axis]);
      pairs_.push_back({axis, 1.0 / std::pow(theta, exponent)});
    }
  }
}

void RopeAxes::write(std::span<const int64_t> position, float* cosine, float* sine) const {
  for (size_t i = 0; i < pairs_.size(); ++i) {
    double angle = static_cast<double>(position[pairs_[i].axis]) * pairs_[i].frequency;
    if (precision_ == AnglePrecision::kFloat32) angle = static_cast<float>(angle);
    cosine[i] = static_cast<float>(std::cos(angle));
    sine[i] = static_cast<float>(std::sin(angle));
  }
}

std::map<std::string, Tensor> rope_tables(const RopeAxes& angles,
                                          std::span<const int64_t> positions, int64_t rows) {
  const auto tokens = static_cast<int64_t>(positions.size() / angles.axes());
  const Shape table{rows, tokens, angles.size()};
  Tensor cosine = Tensor::empty(DType::kF32, table), sine = Tensor::empty(DType::kF32, table);
  float *c = cosine.mutable_as<float>().data(), *s = sine.mutable_as<float>().data();
  const int64_t row = tokens * angles.size();
  for (int64_t t = 0; t < tokens; ++t) {
    const int64_t at = t * angles.size();
    angles.write(positions.subspan(static_cast<size_t>(t) * angles.axes(), angles.axes()), c + at,
                 s + at);
  }
  for (int64_t b = 1; b < rows; ++b) {
    std::copy_n(c, row, c + b * row);
    std::copy_n(s, row, s + b * row);
  }
  return {{"rope.cosine", cosine}, {"rope.sine", sine}};
}

}  // namespace halftone::nn
