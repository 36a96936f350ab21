#include "halftone/base/random.h"

#include <gtest/gtest.h>

namespace halftone {
namespace {

void expect_words(PhiloxBlock block, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  EXPECT_EQ(block.word[0], a);
  EXPECT_EQ(block.word[1], b);
  EXPECT_EQ(block.word[2], c);
  EXPECT_EQ(block.word[3], d);
}

// Known answers published with the generator.
TEST(Philox, MatchesPublishedVectors) {
  expect_words(philox4x32({{0, 0, 0, 0}}, 0, 0), 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8);
  constexpr uint32_t kOnes = 0xffffffff;
  expect_words(philox4x32({{kOnes, kOnes, kOnes, kOnes}}, kOnes, kOnes), 0x408f276d, 0x41c83b0e,
               0xa20bc7c6, 0x6d5451fd);
  expect_words(
      philox4x32({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, 0xa4093822, 0x299f31d0),
      0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1);
}

TEST(Philox, WordsAreIndexedAcrossBlocks) {
  const PhiloxKey key{7, 9};
  for (uint64_t i = 0; i < 64; ++i) {
    EXPECT_EQ(philox_word(key, i), philox_block(key, i / 4).word[i % 4]);
  }
  EXPECT_NE(philox_word({7, 9}, 0), philox_word({7, 10}, 0));
  EXPECT_NE(philox_word({7, 9}, 0), philox_word({8, 9}, 0));
  EXPECT_NE(philox_word(key, 4ull << 32), philox_word(key, 0));  // the high counter word counts
}

}  // namespace
}  // namespace halftone
