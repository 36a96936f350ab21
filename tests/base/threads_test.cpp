#include "halftone/base/threads.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <vector>

#include "halftone/base/error.h"
#include "tests/support/sanitizers.h"

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

TEST(ParallelFor, ThrowsWhatABodyThrewOnceAllHaveEnded) {
  for (const int threads : {1, 2, 7}) {
    std::atomic<int> ended = 0;
    const auto body = [&](int64_t begin, int64_t) {
      if (begin == 0) throw Error(ErrorCode::kOutOfMemory, "here", "no more");
      ++ended;
    };
    EXPECT_THROW(parallel_for(threads, threads, 1, body), Error) << threads;
    EXPECT_EQ(ended, threads - 1);
    parallel_for(threads, threads, 1, [&](int64_t, int64_t) { ++ended; });  // and goes on
    EXPECT_EQ(ended, 2 * threads - 1);
  }
}

// Leaves room for a few stacks of threads and no more.
void limit_address_space(int64_t more) {
  int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const auto bytes = static_cast<rlim_t>(pages * ::sysconf(_SC_PAGESIZE) + more);
  const rlimit limit{bytes, bytes};
  ::setrlimit(RLIMIT_AS, &limit);
}

TEST(StartThreads, StartsWhatTheSystemAllows) {
  EXPECT_EQ(start_threads(1), 1);
  EXPECT_EQ(start_threads(0), hardware_threads());
  EXPECT_EQ(start_threads(3), 3);
#if defined(HALFTONE_SANITIZED)
  GTEST_SKIP() << "a sanitizer needs the whole address space";
#endif
  // In a process of its own. Where OpenMP cannot start a thread it ends the process.
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto in_little_space = [] {
    limit_address_space(40 << 20);
    const int threads = start_threads(64);
    std::atomic<int> pieces = 0;
    parallel_for(threads, threads, 1, [&](int64_t, int64_t) { ++pieces; });
    std::exit(threads >= 1 && threads < 64 && pieces == threads ? 0 : 1);
  };
  EXPECT_EXIT(in_little_space(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace halftone
