// Sums beside the caller's work, and which way they take.
#include "halftone/runtime/side_sums.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "tests/support/errors.h"
#include "tests/support/fake_device.h"
#include "tests/support/mirrored_collective.h"

namespace halftone {
namespace {

using test::MirroredCollective;
using testing::HasSubstr;

TEST(SumRoad, IsNcclWhereEachProcessHasAGpuOfItsOwn) {
  const SumPlace a{"box", "gpu 1", ""}, b{"box", "gpu 2", ""}, c{"other box", "gpu 1", ""};
  EXPECT_TRUE(choose_sum_road({a, b}).nccl);
  EXPECT_TRUE(choose_sum_road({a, b, c}).nccl) << "another machine's has the same name";

  const SumRoad shared = choose_sum_road({a, b, c, b});
  EXPECT_FALSE(shared.nccl);
  EXPECT_EQ(shared.why, "processes 2 and 4 share a GPU, which NCCL does not do");

  const SumRoad without = choose_sum_road({a, {"box", "gpu 2", "there is no NCCL: why"}});
  EXPECT_FALSE(without.nccl);
  EXPECT_EQ(without.why, "process 2 of 2: there is no NCCL: why");

  const SumRoad mixed = choose_sum_road({a, {"box", "", ""}});
  EXPECT_FALSE(mixed.nccl);
  EXPECT_EQ(mixed.why, "process 2 of 2 computes on the CPU");
  EXPECT_FALSE(choose_sum_road({{"box", "", ""}, {"box", "", ""}}).nccl);
}

std::vector<float> numbers(size_t count) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), 1.0f);
  return values;
}

TEST(SideSums, AreMadeInOrderWhileTheCallerGoesOn) {
  MirroredCollective processes;
  processes.delay = std::chrono::milliseconds(60);
  std::vector<float> values = numbers(60);
  const auto sums = make_side_sums(processes, {1}, 30, {});
  EXPECT_FALSE(sums->road().nccl);
  for (int round = 0; round < 2; ++round) {
    const auto start = std::chrono::steady_clock::now();
    for (const int64_t count : {10, 20, 30}) sums->begin(values.data() + count - 10, count);
    const std::chrono::duration<double> begun = std::chrono::steady_clock::now() - start;
    EXPECT_LT(begun.count(), 0.1) << "of 0.18 s that they take";
    std::this_thread::sleep_for(std::chrono::milliseconds(80));
    const SumSeconds seconds = sums->finish();
    EXPECT_GE(seconds.summing, 0.18);
    EXPECT_LT(seconds.waited, seconds.summing - 0.04) << "some went by before";
  }
  EXPECT_EQ(processes.sizes, (std::vector<size_t>{10, 20, 30, 10, 20, 30}));
  EXPECT_EQ(values[0], 4) << "summed twice, being of the first alone";
  EXPECT_EQ(values[59], 60) << "and this is of none";
}

TEST(SideSums, OfADeviceGoThroughMemoryThatIsPinned) {
  MirroredCollective processes;
  test::FakeDevice device;
  const auto memory = device.allocate(60 * 4, "values");
  const std::vector<float> values = numbers(60);
  device.upload(memory->address(), std::as_bytes(std::span(values)));
  auto* const there = reinterpret_cast<float*>(memory->address());
  const auto sums = make_side_sums(processes, {1, &device}, 40, {});
  EXPECT_EQ(device.pinned, 40 * 4);
  sums->begin(there, 40);
  sums->begin(there + 40, 20);
  sums->finish();
  EXPECT_EQ(device.points, 2) << "behind what was launched";
  for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(there[i], 2 * values[i]) << i;
}

TEST(SideSums, EndWhereTheOthersDoNotCome) {
  for (const bool stopped : {false, true}) {
    MirroredCollective processes;
    processes.never = true;
    std::atomic<bool> stop = false;
    std::vector<float> values = numbers(60);
    const auto sums = make_side_sums(processes, {1}, 30, [&] { return stop.load(); });
    sums->begin(values.data(), 30);
    sums->begin(values.data() + 30, 30);
    if (stopped) {
      stop = true;
      EXPECT_THAT(test::error_of([&] { sums->finish(); }), HasSubstr("interrupted"));
    }
    sums->abandon();  // returns, and so does the end of it
    EXPECT_EQ(processes.sums, 0);
  }
}

}  // namespace
}  // namespace halftone
