#include "halftone/base/text.h"

#include <gtest/gtest.h>

namespace halftone {
namespace {

TEST(Text, HumanUnits) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(1023), "1023 B");
  EXPECT_EQ(human_bytes(1536), "1.50 KiB");
  EXPECT_EQ(human_bytes(int64_t{12} << 30), "12.00 GiB");
  EXPECT_EQ(human_seconds(0.0123), "12 ms");
  EXPECT_EQ(human_seconds(12.34), "12.3 s");
  EXPECT_EQ(human_seconds(125), "2 min 05 s");
}

TEST(Text, NaturalOrderIsAStrictOrder) {
  EXPECT_TRUE(natural_less("layers.2.weight", "layers.10.weight"));
  EXPECT_FALSE(natural_less("layers.10.weight", "layers.2.weight"));
  EXPECT_TRUE(natural_less("a", "b"));
  EXPECT_TRUE(natural_less("a", "a1"));
  EXPECT_FALSE(natural_less("a", "a"));
  EXPECT_NE(natural_less("a01", "a1"), natural_less("a1", "a01"));
  EXPECT_TRUE(natural_less("99999999999999999999998", "99999999999999999999999"));
}

TEST(Text, Glob) {
  EXPECT_TRUE(glob_match("*", ""));
  EXPECT_TRUE(glob_match("layers.*.weight", "layers.0.attn.weight"));
  EXPECT_FALSE(glob_match("layers.*.weight", "layers.0.attn.bias"));
  EXPECT_TRUE(glob_match("a?c", "abc"));
  EXPECT_FALSE(glob_match("a?c", "ac"));
  EXPECT_FALSE(glob_match("", "x"));
  EXPECT_TRUE(glob_match("*a*b*", "xxaxxbxx"));
  EXPECT_FALSE(glob_match("*a*b", "xxaxxbxx"));
  // No blow-up on patterns that make naive matchers exponential.
  EXPECT_FALSE(glob_match("*a*a*a*a*a*a*a*a*a*b", std::string(2000, 'a')));
}

}  // namespace
}  // namespace halftone
