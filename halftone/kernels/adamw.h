// AdamW's arithmetic for one value, the same on the CPU and on devices. Factors are formed once per
// step, in double.
#pragma once

#include <cmath>

#include "halftone/base/host_device.h"
#include "halftone/kernels/op_args.h"

namespace halftone {

struct AdamWFactors {
  float decay;        // of the parameter
  float keep1, add1;  // of the first moment
  float keep2, add2;  // of the second
  float rate;         // with the first moment's correction
  float root, eps;    // of the denominator, with the second's
  float gradient_scale;
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
          args.gradient_scale};
}

HT_HOST_DEVICE inline void adamw_step(const AdamWFactors& f, float gradient, float& parameter,
                                      float& first, float& second) {
  const float g = gradient * f.gradient_scale;
  first = f.keep1 * first + f.add1 * g;
  second = f.keep2 * second + f.add2 * g * g;
  parameter = f.decay * parameter - f.rate * first / (sqrtf(second) * f.root + f.eps);
}

}  // namespace halftone
