// GELU by its approximation with tanh, the same for every kernel.
#pragma once

#if !defined(__CUDACC_RTC__)
#include <cmath>
#endif

#include "halftone/base/host_device.h"

namespace halftone {

// x (1 + tanh u) / 2 = x / (1 + e^-2u): the second form keeps the digits of small results.
template <class T>
HT_HOST_DEVICE inline T gelu(T x) {
#if !defined(__CUDACC_RTC__)
  using std::exp;
#endif
  constexpr T kA = T(1.59576912160573071176), kB = T(0.044715);  // sqrt(8 / pi)
  return x / (T(1) + exp(-(kA * (x + kB * x * x * x))));
}

}  // namespace halftone
