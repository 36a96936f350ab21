// The ladder without any model: which arrangement is taken for which limit, and what it says of
// itself.
#include "halftone/engine/memory_ladder.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace halftone {
namespace {

// A model whose encoders are as large as its denoiser, in round numbers.
LadderNeeds large() {
  LadderNeeds needs;
  needs.texts = {{"bf16", 10000, {300, 1}}, {"fp8", 5000, {300, 1}}};
  needs.picture_weights = 6000;
  needs.adapters = 100;
  needs.denoising = {1000, 10};
  needs.decoding = RunningNeeds{4000, 2};
  needs.tiled_decoding = RunningNeeds{800, 2};
  needs.process = 50;
  return needs;
}

struct Expected {
  int64_t limit;
  Rung rung;
  bool turns;
  size_t text;
  bool tiles;
  int64_t peak;
};

void expect_choices(const LadderNeeds& needs, std::initializer_list<Expected> all) {
  for (const Expected& e : all) {
    SCOPED_TRACE(e.limit);
    const LadderChoice choice = climb(needs, e.limit);
    EXPECT_TRUE(choice.fits);
    EXPECT_EQ(choice.chosen.rung, e.rung);
    EXPECT_EQ(choice.chosen.turns, e.turns);
    EXPECT_EQ(choice.chosen.text, e.text);
    EXPECT_EQ(choice.chosen.tiles, e.tiles);
    EXPECT_EQ(choice.chosen.peak, e.peak);
  }
}

TEST(MemoryLadder, TakesTheFirstRungThatFits) {
  // Resident: 150 + 10000 + 6000 + the largest of 300, 1000 and 4000 + 1 + 10 + 2.
  // In turns: 150 + 10000 + 301 to encode, and 150 + 6000 + 4012 to make pictures.
  expect_choices(large(), {{1000000, Rung::kResident, false, 0, false, 20163},
                           {20163, Rung::kResident, false, 0, false, 20163},
                           {20162, Rung::kTurns, true, 0, false, 10451},
                           {10451, Rung::kTurns, true, 0, false, 10451},
                           {10450, Rung::kSmallText, true, 1, false, 10162},
                           {10162, Rung::kSmallText, true, 1, false, 10162},
                           {10161, Rung::kTiles, true, 1, true, 7162},
                           {7162, Rung::kTiles, true, 1, true, 7162}});
}

TEST(MemoryLadder, SmallTextIsNotTakenWhereItDoesNotHelp) {
  LadderNeeds needs = large();
  needs.texts[0].weights = 3000;
  needs.texts[1].weights = 1500;
  // Making pictures needs the most: tiles help, and encoders stay as they are.
  expect_choices(needs, {{10161, Rung::kTiles, true, 0, true, 7162}});
  // And everything may stay resident beside tiles.
  expect_choices(needs, {{10163, Rung::kTurns, true, 0, false, 10162},
                         {10162, Rung::kTurns, true, 0, false, 10162}});
  needs.texts[0].weights = 100;
  expect_choices(needs, {{10161, Rung::kTiles, false, 0, true, 7263}});
}

TEST(MemoryLadder, ConvertedEncodersThatNeedMoreAreNotTaken) {
  LadderNeeds needs = large();  // on a CPU: files are mapped, and what is converted is not
  needs.texts = {{"fp32", 0, {300, 0}}, {"fp8", 5000, {300, 0}}};
  const LadderChoice choice = climb(needs, 100);
  EXPECT_FALSE(choice.fits);
  EXPECT_EQ(choice.chosen.text, 0u);
  EXPECT_TRUE(choice.chosen.tiles);
  EXPECT_EQ(choice.chosen.peak, 7162);
}

TEST(MemoryLadder, WhatFitsNowhereNamesTheLeast) {
  const LadderChoice choice = climb(large(), 7161);
  EXPECT_FALSE(choice.fits);
  EXPECT_EQ(choice.chosen.peak, 7162);
  EXPECT_EQ(choice.resident.peak, 20163);
  EXPECT_EQ(choice.chosen.text_peak, 150 + 5000 + 301);
  EXPECT_EQ(choice.chosen.picture_peak, 7162);
  for (const Arrangement& one : arrangements(large())) EXPECT_GE(one.peak, choice.chosen.peak);
}

TEST(MemoryLadder, TilesThatAreAskedForAreNoRung) {
  LadderNeeds needs = large();
  needs.decoding.reset();
  expect_choices(needs, {{1000000, Rung::kResident, false, 0, true, 17163},
                         {17162, Rung::kTurns, true, 0, true, 10451},
                         {10450, Rung::kSmallText, true, 1, true, 7162}});
  needs = large();
  needs.tiled_decoding.reset();
  EXPECT_FALSE(climb(needs, 10161).fits);
}

TEST(MemoryLadder, StreamedBlocksAreTheLastRung) {
  LadderNeeds needs = large();
  needs.streamed = {500, 0};
  const LadderChoice choice = climb(needs, 7161);
  EXPECT_TRUE(choice.fits);
  EXPECT_EQ(choice.chosen.rung, Rung::kStreamed);
  EXPECT_EQ(choice.chosen.text, 1u);
  EXPECT_FALSE(choice.chosen.tiles);
  EXPECT_EQ(choice.chosen.peak, 150 + 5000 + 301);
  EXPECT_EQ(name_of(choice.chosen.rung), "streamed");
  const auto all = arrangements(needs);
  const auto streams = [](const Arrangement& one) { return one.streamed; };
  EXPECT_TRUE(std::is_partitioned(all.begin(), all.end(), std::not_fn(streams)));
}

}  // namespace
}  // namespace halftone
