// Convolutions with channels last, and their gradients, through cuDNN: what tensor cores read and
// write lies as it is wanted, and what is added behind a convolution is added before it is rounded.
#pragma once

#include <compare>
#include <map>
#include <optional>
#include <string>

#include "halftone/kernels/cuda/cudnn_plans.h"

namespace halftone::cuda {

enum class ConvPass : uint8_t { kForward, kInputGrad, kWeightGrad };

// What one run computes. Channels are padded to what tensor cores take.
struct LastProblem {
  ConvPass pass = ConvPass::kForward;
  bool bf16 = false;
  bool wide = false;  // kWeightGrad: its result is in float
  // kForward: added to sums in float, which are rounded once.
  bool bias = false, narrow_bias = false, adds = false;
  int64_t items = 0;
  int64_t in = 0, height = 0, width = 0;             // x [items, height, width, in]
  int64_t out = 0, out_height = 0, out_width = 0;    // y
  int64_t kh = 0, kw = 0, stride = 0;                // weight [out, kh, kw, in]
  int64_t top = 0, left = 0, bottom = 0, right = 0;  // padding

  auto operator<=>(const LastProblem&) const = default;
};

// A part of the context. workspace() says how many bytes a run needs, or nothing where cuDNN has no
// plan: then other kernels must do it. run() only of problems for which it has returned bytes.
class LastConvolutionPlans {
 public:
  explicit LastConvolutionPlans(Context& context) : context_(context) {}

  // Adds the slow part of making a plan, for any thread.
  void prepare(const ConvArgs& args, PreparationList& work);
  void prepare(const ConvInputGradArgs& args, PreparationList& work);
  void prepare(const ConvWeightGradArgs& args, PreparationList& work);

  std::optional<int64_t> workspace(const ConvArgs& args);
  std::optional<int64_t> workspace(const ConvInputGradArgs& args);
  std::optional<int64_t> workspace(const ConvWeightGradArgs& args);

  void run(const ConvArgs& args, const Stream& stream);
  void run(const ConvInputGradArgs& args, const Stream& stream);
  void run(const ConvWeightGradArgs& args, const Stream& stream);

 private:
  struct Entry {
    LastProblem problem;  // that the plan is for
    std::optional<Plan> plan;
  };
  const Entry& entry(const LastProblem& wanted);
  Entry make(const LastProblem& wanted);

  Context& context_;
  std::map<LastProblem, Entry> entries_;
};

// Whether cuDNN is asked: a function of dtypes, shapes and layouts alone.
bool cudnn_takes_last(const ConvArgs& args);
bool cudnn_takes_last(const ConvInputGradArgs& args);
bool cudnn_takes_last(const ConvWeightGradArgs& args);

}  // namespace halftone::cuda
