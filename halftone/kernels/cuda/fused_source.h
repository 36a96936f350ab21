// Writes the CUDA source of a fused chain of row operations: every value is read once, kept in
// registers through all steps, and written once. Text only, so that it is tested without a GPU.
#pragma once

#include <span>
#include <string>

#include "halftone/kernels/fused_args.h"

namespace halftone::cuda {

struct FusedSource {
  std::string text;          // one kernel, "fused_rows"
  int threads = 0;           // of a block
  int64_t pieces = 1;        // blocks that share a row
  int64_t shared_bytes = 0;  // dynamic shared memory
};

// What was found best by measuring, on an H200.
struct FusedTuning {
  int64_t most_threads = 0;      // of a block that has a whole row; 0: by the chain
  int64_t resident_threads = 0;  // of a multiprocessor: limits registers; 0: by the chain
  int prefetch = -1;             // load the next row while this one is worked on; -1: by the chain
  int keep = -1;                 // keep what rows share in registers; -1: by the chain
};

// input_types: what each input is stored in (F32, BF16 or F16).
FusedSource write_fused_source(const FusedRowsAttributes& how, std::span<const DType> input_types,
                               const FusedTuning& tuning = {});

}  // namespace halftone::cuda
