#include "halftone/base/text.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/errors.h"

namespace halftone {
namespace {

TEST(Text, ThreeDigits) {
  EXPECT_EQ(three_digits(0), "0");
  EXPECT_EQ(three_digits(0.5), "0.500");
  EXPECT_EQ(three_digits(1.4), "1.40");
  EXPECT_EQ(three_digits(-0.012345), "-0.0123");
  EXPECT_EQ(three_digits(9.994), "9.99");
  EXPECT_EQ(three_digits(9.996), "10.0");  // not four of them
  EXPECT_EQ(three_digits(99.96), "100");
  EXPECT_EQ(three_digits(0.0099996), "0.0100");
  EXPECT_EQ(three_digits(850.4), "850");
  EXPECT_EQ(three_digits(123456), "123456");
  EXPECT_EQ(three_digits(NAN), "nan");
}

TEST(Text, HumanUnits) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(1023), "1023 B");
  EXPECT_EQ(human_bytes(1024), "1.00 KiB");
  EXPECT_EQ(human_bytes(1536), "1.50 KiB");
  EXPECT_EQ(human_bytes((1 << 20) - 1), "1.00 MiB");
  EXPECT_EQ(human_bytes(1000 << 10), "1000 KiB");
  EXPECT_EQ(human_bytes(int64_t{12} << 30), "12.0 GiB");
  EXPECT_EQ(human_bytes(int64_t{123456} << 20), "121 GiB");
  // What 0.5 and 1.4 ms have in common is not what a reader wants to know.
  EXPECT_EQ(human_seconds(0.0005), "0.500 ms");
  EXPECT_EQ(human_seconds(0.0014), "1.40 ms");
  EXPECT_EQ(human_seconds(0.0123), "12.3 ms");
  EXPECT_EQ(human_seconds(0.9994), "999 ms");
  EXPECT_EQ(human_seconds(0.9996), "1.00 s");
  EXPECT_EQ(human_seconds(1.234), "1.23 s");
  EXPECT_EQ(human_seconds(12.34), "12.3 s");
  EXPECT_EQ(human_seconds(59.94), "59.9 s");
  EXPECT_EQ(human_seconds(59.96), "1 min 00 s");
  EXPECT_EQ(human_seconds(125), "2 min 05 s");
}

TEST(Text, BytesAreReadAsTheyAreWritten) {
  const auto bytes = [](const char* text) { return parse_bytes(text, "max_memory"); };
  EXPECT_EQ(bytes("1000"), 1000);
  EXPECT_EQ(bytes("7B"), 7);
  EXPECT_EQ(bytes("1.5K"), 1536);
  EXPECT_EQ(bytes("512MiB"), int64_t{512} << 20);
  EXPECT_EQ(bytes("512MB"), int64_t{512} << 20);
  EXPECT_EQ(bytes("2G"), int64_t{2} << 30);
  EXPECT_EQ(bytes("3TiB"), int64_t{3} << 40);
  for (const char* wrong :
       {"", "much", "G", "-1", "0", "nan", "inf", "1X", "1KK", "1k", "5000000T", "0x10MiB"}) {
    EXPECT_EQ(test::error_of([&] { bytes(wrong); }),
              fmt::format("max_memory: '{}' is not a size such as 8GiB", wrong));
  }
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

TEST(Text, Base64) {  // RFC 4648, section 10
  EXPECT_EQ(base64(""), "");
  EXPECT_EQ(base64("f"), "Zg==");
  EXPECT_EQ(base64("fo"), "Zm8=");
  EXPECT_EQ(base64("foo"), "Zm9v");
  EXPECT_EQ(base64("foobar"), "Zm9vYmFy");
  EXPECT_EQ(base64(std::string("\xff\0\xfe", 3)), "/wD+");
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
