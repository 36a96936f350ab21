#include "halftone/training/gradient_sums.h"

#include <algorithm>
#include <numeric>

#include "halftone/base/error.h"
#include "halftone/training/train_graph.h"

namespace halftone {
namespace {

// Many enough that most of the sums are done before the backward pass is, and each large enough to
// be worth its way.
int64_t bucket_of(const GradientSumRules& rules, int64_t count) {
  constexpr int64_t kBuckets = 16, kLeast = 4096, kMost = int64_t{8} << 20;
  return rules.bucket > 0 ? rules.bucket : std::clamp(count / kBuckets, kLeast, kMost);
}

int64_t largest_of(const std::vector<Parameters::Bucket>& buckets) {
  int64_t most = 0;
  for (const Parameters::Bucket& bucket : buckets) most = std::max(most, bucket.count());
  return most;
}

}  // namespace

GradientSums::GradientSums(Parameters& parameters, Collective& processes, const Stream& stream,
                           const GradientSumRules& rules, const Collective::Stop& stop)
    : parameters_(parameters),
      processes_(processes),
      rules_(rules),
      stop_(stop),
      buckets_(parameters.buckets(bucket_of(rules, parameters.count()))),
      sums_(make_side_sums(processes, stream, largest_of(buckets_), stop)) {}

void GradientSums::run(Program& program, bool add) {
  taken_.assign(buckets_.size(), false);
  next_ = 0;
  if (rules_.overlap) {
    watch(program);
    program.run_in_groups([&](size_t bucket) { take(program, bucket, add); });
  } else {
    if (order_.empty()) {
      order_.resize(buckets_.size());
      std::iota(order_.begin(), order_.end(), size_t{0});
    }
    program.run();
    for (const size_t bucket : order_) take(program, bucket, add);
  }
  HT_ASSERT(next_ == order_.size());
}

// Outputs that give a bucket; some weights have none in this program.
void GradientSums::watch(Program& program) {
  if (!program.has_groups()) {
    std::vector<std::vector<std::string>> groups(buckets_.size());
    for (size_t i = 0; i < buckets_.size(); ++i) {
      for (const std::string& weight : buckets_[i].weights) {
        if (program.gives(gradient_name(weight))) groups[i].push_back(gradient_name(weight));
      }
    }
    program.set_groups(groups);
  }
  if (order_.empty()) agree_on_order(program);
}

// Sums are begun in one order by all, whatever shapes each of them runs: in which the first
// process' first program is done with buckets.
void GradientSums::agree_on_order(const Program& program) {
  std::vector<double> order(buckets_.size());
  if (processes_.is_first()) {
    const std::vector<size_t> own = program.order_of_groups();
    std::ranges::copy(own, order.begin());
  }
  processes_.sum(order, stop_);
  for (const double bucket : order) order_.push_back(static_cast<size_t>(bucket));
}

void GradientSums::take(const Program& program, size_t bucket, bool add) {
  parameters_.take_gradients(program, buckets_[bucket], add);
  taken_[bucket] = true;
  for (; next_ < order_.size() && taken_[order_[next_]]; ++next_) {
    const std::span<float> values = parameters_.gradients_of(buckets_[order_[next_]]);
    sums_->begin(values.data(), static_cast<int64_t>(values.size()));
  }
}

SumSeconds GradientSums::finish() { return sums_->finish(); }

}  // namespace halftone
