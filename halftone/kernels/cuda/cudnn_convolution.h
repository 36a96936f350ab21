// Convolutions through cuDNN: plans for the problems that it takes, made once and kept.
#pragma once

#include <compare>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "halftone/kernels/cuda/cudnn_plans.h"

namespace halftone::cuda {

// Whether cuDNN is asked: a function of dtypes and shapes alone.
bool cudnn_takes(const ConvArgs& args);

// What one run computes. In BF16 channels are padded to a multiple of 8.
struct ConvProblem {
  bool bf16 = false, bias = false;
  int64_t items = 0;
  int64_t in = 0, height = 0, width = 0;             // x [items, in, height, width]
  int64_t out = 0, out_height = 0, out_width = 0;    // y
  int64_t kh = 0, kw = 0, stride = 0;                // weight [out, in, kh, kw]
  int64_t top = 0, left = 0, bottom = 0, right = 0;  // padding

  auto operator<=>(const ConvProblem&) const = default;
};

// A part of the context.
class ConvolutionPlans {
 public:
  explicit ConvolutionPlans(Context& context) : context_(context) {}

  // Adds the slow part of making its plan, for any thread.
  void prepare(const ConvArgs& args, PreparationList& work);
  // Bytes of workspace, or nothing where cuDNN has no plan: then another kernel must do it.
  std::optional<int64_t> workspace(const ConvArgs& args);
  // Only of problems for which workspace() has returned bytes.
  void run(const ConvArgs& args, const Stream& stream);

  // What cuDNN should have taken but refused, and why.
  std::vector<std::string> fallbacks() const;

 private:
  struct Entry {
    std::optional<Plan> plan;
    bool adds_bias = false;
    std::string refusal;
  };
  const Entry& entry(const ConvProblem& problem);
  Entry make(const ConvProblem& problem);
  void run_bf16(const ConvArgs& args, const Stream& stream);
  void run_f32(const ConvArgs& args, const Stream& stream);

  Context& context_;
  std::map<ConvProblem, Entry> entries_;
};

}  // namespace halftone::cuda
