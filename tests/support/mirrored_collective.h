// Two processes of which the other one always has what this one has: sums are twice as much, and
// take as long as they are told to.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "halftone/base/error.h"
#include "halftone/runtime/collective.h"

namespace halftone::test {

class MirroredCollective final : public Collective {
 public:
  int size() const override { return 2; }
  void sum(std::span<float> values, const Stop& stop) override {
    const auto start = std::chrono::steady_clock::now();
    if (on_sum) on_sum();
    while (never || std::chrono::steady_clock::now() - start < delay) {
      if (stop && stop()) throw Error(ErrorCode::kCancelled, "", "interrupted while waiting");
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    for (float& value : values) value += value;
    sizes.push_back(values.size());
    ++sums;
  }
  std::vector<std::string> gather(const std::string& own, const Stop& /*stop*/) override {
    return {own, own};
  }
  // Of the order of buckets, which the first alone says, and of losses.
  void sum(std::span<double> /*values*/, const Stop& /*stop*/) override {}

  std::chrono::microseconds delay{0};
  std::function<void()> on_sum;
  std::atomic<bool> never = false;  // the other one does not come
  std::atomic<int> sums = 0;
  std::vector<size_t> sizes;  // of sums, in their order
};

}  // namespace halftone::test
