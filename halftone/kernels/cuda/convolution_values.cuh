// An array that a kernel reads or writes as floats; its dtype is the same for every thread, so the
// branch costs little beside the access.
#pragma once

#include "halftone/kernels/cuda/elements.cuh"
#include "halftone/kernels/op_args.h"

namespace halftone::cuda {

struct Values {
  const void* data;
  DType dtype;

  explicit Values(const ConstView& x) : data(x.data), dtype(x.dtype) {}
  __device__ float operator[](int64_t i) const { return load_value(data, dtype, i); }
};

struct Results {
  void* data;
  DType dtype;

  explicit Results(const View& y) : data(y.data), dtype(y.dtype) {}
  __device__ void store(int64_t i, float value) const { store_value(data, dtype, i, value); }
};

}  // namespace halftone::cuda
