// NCCL on one GPU: a group of one, whose sums are what each has.
#include <gtest/gtest.h>

#include "halftone/kernels/cuda/backend.h"
#include "tests/cuda/device_tensors.h"
#include "tests/support/backend.h"
#include "tests/support/errors.h"
#include "tests/support/run_graph.h"

namespace halftone {
namespace {

using test::floats;
using test::random_tensor;

// (Its library is optional.)
#define HT_SKIP_WITHOUT_NCCL(device)                                   \
  if (!why_no_device_group(device).empty()) {                          \
    GTEST_SKIP() << why_no_device_group(device) << "; it is optional"; \
  }

TEST(NcclGroup, OfOneLeavesValuesAsLaunchesBeforeHaveMadeThem) {
  const Stream stream = test::tested_stream();
  HT_SKIP_WITHOUT_NCCL(*stream.device);
  const std::string key = new_group_key(*stream.device);
  const auto group = join_device_group(*stream.device, {key, 0, 1}, {});
  constexpr int64_t kCount = 1 << 20, kFirst = 1 << 18;
  const Tensor values = random_tensor({kCount}, 1);
  const test::DeviceTensor from(values, stream), to(DType::kF32, {kCount}, stream);
  for (int step = 0; step < 3; ++step) {  // as gradients are: copied there, bucket by bucket
    const auto copy = [&](int64_t begin, int64_t count) {
      stream.device->copy(reinterpret_cast<std::byte*>(to.data<float>() + begin),
                          reinterpret_cast<const std::byte*>(from.data<float>() + begin),
                          count * 4);
      group->begin_sum(to.data<float>() + begin, count);
    };
    copy(kFirst, kCount - kFirst);
    copy(0, kFirst);
    group->finish({});
    EXPECT_EQ(floats(to.download()), floats(values));
    EXPECT_GE(group->seconds(), 0);
    stream.device->copy(reinterpret_cast<std::byte*>(to.data<float>()),
                        reinterpret_cast<const std::byte*>(from.data<float>() + 16), kCount * 2);
  }
}

TEST(NcclGroup, EndsWhereOthersDoNotComeAndSumsNothingAfterwards) {
  const Stream stream = test::tested_stream();
  HT_SKIP_WITHOUT_NCCL(*stream.device);
  const auto start = std::chrono::steady_clock::now();
  const std::string why = test::error_of([&] {  // a second process never comes
    join_device_group(*stream.device, {new_group_key(*stream.device), 0, 2}, [&] {
      return std::chrono::steady_clock::now() - start > std::chrono::seconds(1);
    });
  });
  EXPECT_NE(why.find("interrupted while waiting for other processes"), std::string::npos) << why;
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));

  const auto alone = join_device_group(*stream.device, {new_group_key(*stream.device), 0, 1}, {});
  const test::DeviceTensor values(random_tensor({1024}, 1), stream);
  alone->begin_sum(values.data<float>(), 1024);
  alone->abandon();
  EXPECT_NE(test::error_of([&] { alone->begin_sum(values.data<float>(), 1024); }).find("NCCL"),
            std::string::npos);
  EXPECT_EQ(values.download().shape(), (Shape{1024})) << "the GPU goes on";
}

TEST(NcclGroup, RefusesAKeyThatIsNone) {
  const Stream stream = test::tested_stream();
  HT_SKIP_WITHOUT_NCCL(*stream.device);
  EXPECT_THROW(join_device_group(*stream.device, {"short", 0, 1}, {}), Error);
}

// Copies beside launches see what was launched before their point.
TEST(SideCopies, BeginBehindTheirPoint) {
  const Stream stream = test::tested_stream();
  constexpr int64_t kCount = 1 << 22;
  const Tensor values = random_tensor({kCount}, 3);
  const test::DeviceTensor from(values, stream), to(DType::kF32, {kCount}, stream);
  auto* const there = reinterpret_cast<std::byte*>(to.data<float>());
  const auto copies = stream.device->side_copies();
  const auto pinned = stream.device->allocate_pinned(kCount * 4, "a test");
  for (int i = 0; i < 20; ++i) {
    stream.device->copy(there, reinterpret_cast<const std::byte*>(from.data<float>()), kCount * 4);
  }
  const auto point = stream.device->point();
  point->wait();
  copies->download(pinned->mutable_bytes(), there);
  EXPECT_TRUE(std::ranges::equal(pinned->mutable_bytes(), values.bytes()));
  std::ranges::fill(pinned->mutable_bytes(), std::byte{0});
  copies->upload(there, pinned->mutable_bytes());
  EXPECT_EQ(floats(to.download())[kCount - 1], 0);
  EXPECT_EQ(stream.device->identity().size(), 32u);
}

}  // namespace
}  // namespace halftone
