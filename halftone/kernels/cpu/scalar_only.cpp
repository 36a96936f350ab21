// Stands in for simd_kernels.cpp in builds without Highway.
#include "halftone/kernels/kernels.h"

namespace halftone {

const Kernels& cpu_kernels() { return cpu_scalar_kernels(); }

}  // namespace halftone
