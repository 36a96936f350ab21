// GELU, x Phi(x) with the distribution function Phi of the normal distribution, and two of its
// approximations: the same for every kernel.
#pragma once

#if !defined(__CUDACC_RTC__)
#include <cmath>
#endif

#include "halftone/base/host_device.h"

namespace halftone {

// By tanh: x (1 + tanh u) / 2 = x / (1 + e^-2u): the second form keeps the digits of small results.
template <class T>
HT_HOST_DEVICE inline T gelu(T x) {
#if !defined(__CUDACC_RTC__)
  using std::exp;
#endif
  constexpr T kA = T(1.59576912160573071176), kB = T(0.044715);  // sqrt(8 / pi)
  return x / (T(1) + exp(-(kA * (x + kB * x * x * x))));
}

// By a sigmoid, as CLIP has it.
template <class T>
HT_HOST_DEVICE inline T quick_gelu(T x) {
#if !defined(__CUDACC_RTC__)
  using std::exp;
#endif
  return x / (T(1) + exp(T(-1.702) * x));
}

// Phi(x). On the host in double alone: rounding x / sqrt(2) to float would cost small results five
// bits.
template <class T>
HT_HOST_DEVICE inline T normal_distribution(T x) {
#if defined(__CUDA_ARCH__)
  return normcdff(x);
#else
  static_assert(sizeof(T) == sizeof(double));
  return T(0.5) * std::erfc(x * T(-0.70710678118654752440));
#endif
}

// Itself, and its derivative Phi(x) + x Phi'(x).
template <class T>
HT_HOST_DEVICE inline T erf_gelu(T x) {
  return x * normal_distribution(x);
}
template <class T>
HT_HOST_DEVICE inline T erf_gelu_slope(T x) {
#if !defined(__CUDACC_RTC__)
  using std::exp;
#endif
  return normal_distribution(x) + x * (T(0.39894228040143267794) * exp(T(-0.5) * x * x));
}

}  // namespace halftone
