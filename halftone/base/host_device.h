// Marks functions that run on the CPU and inside CUDA kernels alike, and reinterprets bits in both.
#pragma once

#if defined(__CUDACC__)
#define HT_HOST_DEVICE __host__ __device__
#else
#define HT_HOST_DEVICE
#endif

namespace halftone {

// std::bit_cast is not callable from device code; the builtin behind it is.
template <class To, class From>
HT_HOST_DEVICE constexpr To bit_cast(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  return __builtin_bit_cast(To, from);
}

}  // namespace halftone
