// Moments in passes: each within the memory, every group once, in order.
#include "halftone/quantize/moment_passes.h"

#include <gtest/gtest.h>

namespace halftone {
namespace {

std::vector<MomentGroup> groups_of(const std::vector<int64_t>& widths) {
  std::vector<MomentGroup> groups;
  for (const int64_t width : widths) groups.push_back({std::to_string(groups.size()), width, {}});
  return groups;
}

TEST(MomentPasses, EachIsWithinTheMemoryAndEveryGroupIsInOne) {
  const auto groups = groups_of({64, 64, 160, 64, 160, 32, 64});
  const int64_t all = moment_bytes(groups), widest = moment_bytes({&groups[2], 1});
  size_t fewest = groups.size() + 1;
  for (int64_t most = widest; most <= all; most += (all - widest) / 16) {
    const auto passes = plan_passes(groups, most);
    ASSERT_TRUE(passes.has_value());
    size_t next = 0;
    for (const auto& pass : *passes) {
      EXPECT_LE(moment_bytes(pass), most);
      for (const MomentGroup& group : pass) EXPECT_EQ(group.first, std::to_string(next++));
    }
    EXPECT_EQ(next, groups.size());
    EXPECT_LE(passes->size(), fewest);  // more memory never takes more passes
    fewest = passes->size();
  }
  EXPECT_EQ(plan_passes(groups, all)->size(), 1u);
  EXPECT_GT(plan_passes(groups, widest)->size(), 2u);
  EXPECT_FALSE(plan_passes(groups, widest - 1).has_value());
  EXPECT_TRUE(plan_passes({}, 0)->empty());
}

// A full-size Z-Image: 34 blocks with three inputs of 3840 and one of 10240.
TEST(MomentPasses, AFullSizeModelIsOnePassOnALargeMachine) {
  std::vector<int64_t> widths;
  for (int block = 0; block < 34; ++block) widths.insert(widths.end(), {3840, 3840, 3840, 10240});
  const auto groups = groups_of(widths);
  constexpr int64_t kGiB = int64_t{1} << 30;
  EXPECT_EQ(plan_passes(groups, 60 * kGiB)->size(), 1u);
  EXPECT_EQ(plan_passes(groups, 8 * kGiB)->size(), 4u);
  EXPECT_FALSE(plan_passes(groups, kGiB).has_value());
}

}  // namespace
}  // namespace halftone
