// Sums over all processes that go on beside the caller's work: on the devices themselves where
// these can (NCCL), or by a thread through the CPU's memory.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "halftone/kernels/kernels.h"
#include "halftone/runtime/collective.h"

namespace halftone {

struct SumSeconds {
  double summing = 0;  // that sums took, others' delay among it
  double waited = 0;   // of these, with nothing else to do
  SumSeconds& operator+=(const SumSeconds& other) {
    summing += other.summing;
    waited += other.waited;
    return *this;
  }
};

// Where a process computes.
struct SumPlace {
  std::string machine;
  std::string device;   // as its driver tells it from others; empty: the CPU
  std::string no_nccl;  // why NCCL cannot be used; empty: it can
};
struct SumRoad {
  bool nccl = false;
  std::string why;
};
// By rank. A GPU that two of them share is nothing for NCCL.
SumRoad choose_sum_road(const std::vector<SumPlace>& places);

class SideSums {
 public:
  virtual ~SideSums() = default;

  // In place, where programs run: what is there when all that was launched so far is done. All
  // processes begin the same sums in the same order, and no others until they have finished.
  virtual void begin(float* values, int64_t count) = 0;
  // Until all are done, and told to whatever is launched from then on; what they took.
  virtual SumSeconds finish() = 0;
  // Where something else has failed: no sum is under way any more, and none can be begun.
  virtual void abandon() noexcept = 0;

  const SumRoad& road() const { return road_; }

 protected:
  SumRoad road_;
};

// All processes call it. `most` is the largest count of one sum. `stop` ends waits with
// Error{kCancelled}, and is asked by another thread.
std::unique_ptr<SideSums> make_side_sums(Collective& processes, const Stream& stream, int64_t most,
                                         const Collective::Stop& stop);

}  // namespace halftone
