// AdamW's arithmetic for one value, the same on the CPU and on devices. Factors are formed once per
// step, in double.
#pragma once

#include <cmath>

#include "halftone/base/host_device.h"
#include "halftone/kernels/op_args.h"
#include "halftone/numerics/bf16.h"
#include "halftone/numerics/minifloat.h"

namespace halftone {

// Values whose 8-bit moments share a scale.
inline constexpr int64_t kMomentBlock = 256;

struct AdamWFactors {
  float decay;        // of the parameter
  float keep1, add1;  // of the first moment
  float keep2, add2;  // of the second
  float rate;         // with the first moment's correction
  float root, eps;    // of the denominator, with the second's
  float gradient_scale;
  float average_rate;
};

inline AdamWFactors adamw_factors(const AdamWArgs& args) {
  const double b1 = args.beta1, b2 = args.beta2, lr = args.learning_rate;
  const auto step = static_cast<double>(args.step);
  const auto f = [](double v) { return static_cast<float>(v); };
  return {f(1 - lr * args.weight_decay),
          f(b1),
          f(1 - b1),
          f(b2),
          f(1 - b2),
          f(lr / (1 - std::pow(b1, step))),
          f(1 / std::sqrt(1 - std::pow(b2, step))),
          args.eps,
          args.gradient_scale,
          args.average_rate};
}

HT_HOST_DEVICE inline void adamw_step(const AdamWFactors& f, float gradient, float& parameter,
                                      float& first, float& second) {
  const float g = gradient * f.gradient_scale;
  first = f.keep1 * first + f.add1 * g;
  second = f.keep2 * second + f.add2 * g * g;
  parameter = f.decay * parameter - f.rate * first / (sqrtf(second) * f.root + f.eps);
}

// Parameters in memory. In BF16 a result is rounded up or down by chance, in proportion to how near
// it is: steps far below a value's last bit, which rounding to the nearest would lose for ever,
// count in the mean.
struct ParameterValues {
  void* data;
  bool small;  // BF16
  PhiloxKey rounding;

  HT_HOST_DEVICE float get(int64_t i) const {
    return small ? to_float(static_cast<const bf16*>(data)[i]) : static_cast<const float*>(data)[i];
  }
  HT_HOST_DEVICE float set(int64_t i, float value) const {  // what is stored
    if (!small) return static_cast<float*>(data)[i] = value;
    const bf16 rounded = rounded_by_chance(value, philox_word(rounding, static_cast<uint64_t>(i)));
    static_cast<bf16*>(data)[i] = rounded;
    return to_float(rounded);
  }
  HT_HOST_DEVICE static bf16 rounded_by_chance(float value, uint32_t random) {
    const auto bits = bit_cast<uint32_t>(value);
    if ((bits & 0x7F800000u) == 0x7F800000u) return to_bf16(value);  // no number, or infinite
    return bf16{static_cast<uint16_t>((bits + (random & 0xFFFFu)) >> 16)};
  }
};
inline ParameterValues parameter_values(const AdamWArgs& args) {
  return {args.parameters.data, args.parameters.dtype == DType::kBF16, args.rounding};
}

// Moments in 8 bits, in units of their block's scale. The root of the second is stored, which
// halves the range that it needs, and it is rounded up: a step may become shorter by that, never
// longer, and what is not zero does not become so. A first moment that is 10^5 times smaller than
// the largest of its block is taken for zero.
HT_HOST_DEVICE inline float moment_scale(float largest) {
  constexpr float kSmallest = 1e-30f;  // below, the reciprocal is no number
  return largest < kSmallest ? 0.0f : largest / E4M3::kMax;
}
HT_HOST_DEVICE inline uint8_t encode_moment(float value, float scale) {
  return scale == 0 ? uint8_t{0} : encode<E4M3>(value / scale);
}
HT_HOST_DEVICE inline uint8_t encode_root(float root, float scale) {
  if (scale == 0 || root == 0) return 0;
  const uint8_t code = encode<E4M3>(root / scale);
  const bool below = code < E4M3::kMaxCode && decode<E4M3>(code) * scale < root;
  return static_cast<uint8_t>(code + (below ? 1 : 0));
}

}  // namespace halftone
