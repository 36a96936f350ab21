// Every call of CUDA's libraries is checked: what fails is an Error that names the call.
#pragma once

#include <cuda_runtime.h>

#include "halftone/base/error.h"
#include "halftone/kernels/cuda/libraries.h"

namespace halftone::cuda {

inline void check(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // told once: the next launch that is checked did nothing wrong
  const auto code =
      status == cudaErrorMemoryAllocation ? ErrorCode::kOutOfMemory : ErrorCode::kUnsupported;
  throw Error(code, "CUDA", "{} failed: {} ({})", call, cudaGetErrorString(status),
              cudaGetErrorName(status));
}

inline void check(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw Error(ErrorCode::kUnsupported, "cuBLASLt", "{} failed: {}", call,
              cublaslt().cublasLtGetStatusString(status));
}

}  // namespace halftone::cuda

#define HT_CUDA(call) ::halftone::cuda::check((call), #call)
