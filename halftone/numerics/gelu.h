// GELU by its approximation with tanh, the same for every kernel.
#pragma once

#if !defined(__CUDACC_RTC__)
#include <cmath>
#endif

#include "halftone/base/host_device.h"

namespace halftone {

template <class T>
HT_HOST_DEVICE inline T gelu(T x) {
#if !defined(__CUDACC_RTC__)
  using std::tanh;
#endif
  constexpr T kA = T(0.79788456080286535588), kB = T(0.044715);  // sqrt(2 / pi)
  return T(0.5) * x * (T(1) + tanh(kA * (x + kB * x * x * x)));
}

}  // namespace halftone
