// Fused attention through cuDNN: plans for the problems that it takes, made once and kept.
// The graphs are those of flash attention: softmax(scale q k^T) v, and its gradients.
#pragma once

#include <compare>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "halftone/kernels/cuda/cudnn_plans.h"

namespace halftone::cuda {

// Whether cuDNN is asked: a function of dtypes, shapes and strides alone.
bool cudnn_takes(const AttentionArgs& args);
bool cudnn_takes(const AttentionGradArgs& args);

// q [B, S, Hq, D], k and v [B, N, Hk, D]; outputs are contiguous.
struct AttentionProblem {
  bool backward = false;
  int64_t batch = 0, heads = 0, groups = 0;  // B, Hq, Hk
  int64_t queries = 0, keys = 0, dim = 0;    // S, N, D
  bool lengths = false;
  bool bias = false, narrow_bias = false;  // of scores; in BF16
  bool bias_of_items = false;              // each item has its own
  bool repeatable = false;                 // backward: deterministic, whatever memory that takes
  // Elements from one token to the next.
  int64_t q_stride = 0, k_stride = 0, v_stride = 0, dy_stride = 0;

  auto operator<=>(const AttentionProblem&) const = default;
};

// A part of the context.
class AttentionPlans {
 public:
  explicit AttentionPlans(Context& context) : context_(context) {}

  // Adds the slow part of making its plans, for any thread.
  void prepare(const AttentionArgs& args, PreparationList& work);
  void prepare(const AttentionGradArgs& args, PreparationList& work);
  // Bytes of workspace, or nothing where cuDNN has no plan: then another kernel must do it.
  std::optional<int64_t> workspace(const AttentionArgs& args);
  std::optional<int64_t> workspace(const AttentionGradArgs& args);
  // Only of problems for which workspace() has returned bytes.
  void run(const AttentionArgs& args, const Stream& stream);
  void run(const AttentionGradArgs& args, const Stream& stream);

  // What cuDNN should have taken but refused, and why.
  std::vector<std::string> fallbacks() const;

 private:
  AttentionProblem backward_of(const AttentionGradArgs& args) const;
  void prepare(const AttentionProblem& problem, PreparationList& work);
  struct Entry {
    std::optional<Plan> plan;
    bool deterministic = false;  // a backward pass whose dq is too
    std::string refusal;
  };
  const Entry& entry(const AttentionProblem& problem);
  Entry make(const AttentionProblem& problem);

  Context& context_;
  std::map<AttentionProblem, Entry> entries_;
};

// query_lengths[b] = queries; key_lengths[b] = lengths[b] within 1 .. keys.
struct SequenceLengths {
  const int32_t* lengths;
  int64_t batch, queries, keys;
  int32_t *query_lengths, *key_lengths;
};
void write_sequence_lengths(const SequenceLengths& args, cudaStream_t stream);

}  // namespace halftone::cuda
