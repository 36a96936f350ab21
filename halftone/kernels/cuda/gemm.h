// One GEMM through cuBLASLt. Algorithms are chosen by measuring the heuristic's candidates once per
// problem, and remembered in a file, so that the next run starts at full speed.
#pragma once

#include <cublasLt.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "halftone/kernels/cuda/context.h"
#include "halftone/kernels/cuda/product_plan.h"

namespace halftone::cuda {

// Y [m, n] = op(a) op(b) (+ bias) (+ addend), row-major; all that a choice of algorithm depends on.
struct GemmProblem {
  cudaDataType_t a_type = CUDA_R_16BF, b_type = CUDA_R_16BF, y_type = CUDA_R_16BF;
  int64_t m = 0, n = 0, k = 0;
  // Where not 0, the product is by the algorithm for so many rows, of which m are a multiple: each
  // row has the bits that it has there.
  int64_t item_rows = 0;
  bool transpose_a = false, transpose_b = true;
  GemmScales scales = GemmScales::kNone;
  bool bias = false;   // in y's dtype
  bool gelu = false;   // of the result
  bool add = false;    // an addend, which is packed as y is and may be y itself
  bool alpha = false;  // a factor in device memory
  bool fast_accumulation = false;
  // Elements from one row of what is stored to the next; 0 where rows are packed.
  int64_t a_stride = 0, b_stride = 0, y_stride = 0;

  std::string key() const;
};

struct GemmPointers {
  const void *a = nullptr, *b = nullptr, *bias = nullptr;
  const void *a_scales = nullptr, *b_scales = nullptr;
  const float* alpha = nullptr;
  const void* addend = nullptr;
  void* y = nullptr;
};

class Gemms {
 public:
  explicit Gemms(Context& context);
  ~Gemms();
  Gemms(const Gemms&) = delete;
  Gemms& operator=(const Gemms&) = delete;

  static constexpr int64_t kWorkspaceBytes = int64_t{32} << 20;

  void run(const GemmProblem& problem, const GemmPointers& pointers, std::byte* workspace);

  int measured() const { return measured_; }  // problems whose algorithms were measured here

 private:
  class Descriptors;
  void run_items(const GemmProblem& problem, GemmPointers at, std::byte* workspace);
  bool runs(const Descriptors& descriptors, const cublasLtMatmulAlgo_t& algorithm) const;
  const cublasLtMatmulAlgo_t& algorithm(const GemmProblem& problem, const Descriptors& descriptors,
                                        const GemmPointers& pointers, std::byte* workspace);
  std::vector<cublasLtMatmulAlgo_t> proposed(const GemmProblem& problem,
                                             const Descriptors& descriptors) const;
  std::vector<cublasLtMatmulAlgo_t> candidates_of(const GemmProblem& problem,
                                                  const Descriptors& descriptors,
                                                  const GemmPointers& pointers) const;
  cublasLtMatmulAlgo_t measure_beside(const GemmProblem& problem, const Descriptors& descriptors,
                                      const GemmPointers& pointers, std::byte* workspace);
  cublasLtMatmulAlgo_t measure(const GemmProblem& problem, const Descriptors& descriptors,
                               const GemmPointers& pointers, std::byte* workspace);
  cublasStatus_t launch(const Descriptors& descriptors, const GemmPointers& pointers,
                        const cublasLtMatmulAlgo_t& algorithm, std::byte* workspace) const;
  void load();
  void save() const;

  Context& context_;
  cublasLtHandle_t handle_ = nullptr;
  float* one_ = nullptr;  // on the device, beside alphas that are there too
  std::string file_;
  std::map<std::string, cublasLtMatmulAlgo_t> chosen_;
  bool changed_ = false;
  int measured_ = 0;
};

}  // namespace halftone::cuda
