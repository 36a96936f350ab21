// Gradients of several processes, summed bucket by bucket: each bucket is on its way to the others
// as soon as the backward pass is done with it.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "halftone/runtime/side_sums.h"
#include "halftone/training/parameters.h"

namespace halftone {

struct GradientSumRules {
  bool overlap = true;  // false: all of them go when the backward pass is over, to the same bits
  int64_t bucket = 0;   // values, about; 0: what suits
};

class GradientSums {
 public:
  // All processes make one, of the same parameters. `stop` is asked while others are waited for.
  GradientSums(Parameters& parameters, Collective& processes, const Stream& stream,
               const GradientSumRules& rules, const Collective::Stop& stop);

  // Runs a program that gives gradients, takes them, beside those that are there if `add`, and
  // begins to sum them.
  void run(Program& program, bool add);
  // Until the sums are where the gradients are; what they took.
  SumSeconds finish();
  // Where the step has failed.
  void abandon() noexcept { sums_->abandon(); }

  const SumRoad& road() const { return sums_->road(); }

 private:
  void watch(Program& program);
  void agree_on_order(const Program& program);
  void take(const Program& program, size_t bucket, bool add);

  Parameters& parameters_;
  Collective& processes_;
  GradientSumRules rules_;
  Collective::Stop stop_;
  std::vector<Parameters::Bucket> buckets_;
  std::unique_ptr<SideSums> sums_;
  std::vector<size_t> order_;  // of buckets, in which all processes begin their sums
  std::vector<bool> taken_;    // in this run, by bucket
  size_t next_ = 0;            // in the order
};

}  // namespace halftone
