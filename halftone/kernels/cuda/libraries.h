// cuBLASLt, cuDNN and NVRTC, opened when a GPU is first used: half a gigabyte of libraries is
// nothing that `--help`, or a machine without a GPU, should wait for or need. Functions keep their
// names: cublaslt().cublasLtMatmul(...).
#pragma once

#include <cublasLt.h>
#include <cudnn_graph.h>
#include <nvrtc.h>

namespace halftone::cuda {

#define HT_CUBLASLT_FUNCTIONS(F)          \
  F(cublasLtCreate)                       \
  F(cublasLtDestroy)                      \
  F(cublasLtGetStatusString)              \
  F(cublasLtGetVersion)                   \
  F(cublasLtMatmul)                       \
  F(cublasLtMatmulAlgoCheck)              \
  F(cublasLtMatmulAlgoConfigGetAttribute) \
  F(cublasLtMatmulAlgoGetHeuristic)       \
  F(cublasLtMatmulDescCreate)             \
  F(cublasLtMatmulDescDestroy)            \
  F(cublasLtMatmulDescSetAttribute)       \
  F(cublasLtMatmulPreferenceCreate)       \
  F(cublasLtMatmulPreferenceDestroy)      \
  F(cublasLtMatmulPreferenceSetAttribute) \
  F(cublasLtMatrixLayoutCreate)           \
  F(cublasLtMatrixLayoutDestroy)

#define HT_CUDNN_FUNCTIONS(F)      \
  F(cudnnBackendCreateDescriptor)  \
  F(cudnnBackendDestroyDescriptor) \
  F(cudnnBackendExecute)           \
  F(cudnnBackendFinalize)          \
  F(cudnnBackendGetAttribute)      \
  F(cudnnBackendSetAttribute)      \
  F(cudnnCreate)                   \
  F(cudnnDestroy)                  \
  F(cudnnGetErrorString)           \
  F(cudnnGetLastErrorString)       \
  F(cudnnGetVersion)               \
  F(cudnnSetStream)

#define HT_NVRTC_FUNCTIONS(F) \
  F(nvrtcCompileProgram)      \
  F(nvrtcCreateProgram)       \
  F(nvrtcDestroyProgram)      \
  F(nvrtcGetCUBIN)            \
  F(nvrtcGetCUBINSize)        \
  F(nvrtcGetErrorString)      \
  F(nvrtcGetProgramLog)       \
  F(nvrtcGetProgramLogSize)   \
  F(nvrtcVersion)

// NOLINTNEXTLINE(bugprone-macro-parentheses): it is the name of what is declared.
#define HT_POINTER(name) decltype(&::name) name = nullptr;
struct CublasLt {
  HT_CUBLASLT_FUNCTIONS(HT_POINTER)
};
struct CudnnLibrary {
  HT_CUDNN_FUNCTIONS(HT_POINTER)
};
struct Nvrtc {
  HT_NVRTC_FUNCTIONS(HT_POINTER)
};
#undef HT_POINTER

// Each opens its library at the first call and throws an Error that names it where it is not there.
const CublasLt& cublaslt();
const CudnnLibrary& cudnn();
const Nvrtc& nvrtc();

}  // namespace halftone::cuda
