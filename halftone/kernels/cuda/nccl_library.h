// NCCL, opened when several processes with a GPU each train together.
#pragma once

#if defined(HALFTONE_NCCL)

#include <nccl.h>

namespace halftone::cuda {

#define HT_NCCL_FUNCTIONS(F) \
  F(ncclAllReduce)           \
  F(ncclCommAbort)           \
  F(ncclCommDestroy)         \
  F(ncclCommFinalize)        \
  F(ncclCommGetAsyncError)   \
  F(ncclCommInitRankConfig)  \
  F(ncclGetErrorString)      \
  F(ncclGetUniqueId)         \
  F(ncclGetVersion)

// NOLINTNEXTLINE(bugprone-macro-parentheses): it is the name of what is declared.
#define HT_POINTER(name) decltype(&::name) name = nullptr;
struct Nccl {
  HT_NCCL_FUNCTIONS(HT_POINTER)
};
#undef HT_POINTER

// Opens it at the first call, and throws an Error where it is not there.
const Nccl& nccl();

}  // namespace halftone::cuda

#endif
