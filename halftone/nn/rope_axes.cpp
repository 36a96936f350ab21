#include "halftone/nn/rope_axes.h"

#include <cmath>

namespace halftone::nn {

RopeAxes::RopeAxes(double theta, std::span<const int64_t> dims, AnglePrecision precision)
    : precision_(precision) {
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

}  // namespace halftone::nn
