#include "halftone/base/threads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

namespace halftone {
namespace {

TEST(ParallelFor, VisitsEveryItemOnce) {
  for (const int threads : {0, 1, 2, 7}) {
    for (const int64_t count : {0, 1, 2, 13, 1000}) {
      for (const int64_t grain : {0, 1, 5, 5000}) {
        std::vector<std::atomic<int>> seen(static_cast<size_t>(count));
        parallel_for(threads, count, grain, [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) ++seen[i];
        });
        for (const auto& n : seen) ASSERT_EQ(n, 1) << threads << " " << count << " " << grain;
      }
    }
  }
}

TEST(ParallelFor, SplitsNoFinerThanTheGrain) {
  std::atomic<int> pieces = 0;
  parallel_for(8, 100, 40, [&](int64_t, int64_t) { ++pieces; });
  EXPECT_LE(pieces, 3);
  EXPECT_GE(hardware_threads(), 1);
}

}  // namespace
}  // namespace halftone
