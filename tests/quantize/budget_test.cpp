// What a search may cost, as it is written.
#include "halftone/quantize/budget.h"

#include <gtest/gtest.h>

#include "tests/support/errors.h"

namespace halftone {
namespace {

TEST(Budget, IsReadAsItIsWritten) {
  const auto parse = [](const std::string& text) { return parse_budget(text, formats::nvfp4); };
  EXPECT_EQ(parse("cosine=0.998").cosine, 0.998);
  EXPECT_FALSE(parse("cosine=0.998").bytes || parse("cosine=0.998").automatic);
  EXPECT_EQ(parse("bytes=12M").bytes, int64_t{12} << 20);
  EXPECT_FALSE(parse("bytes=12M").cosine || parse("bytes=12M").automatic);
  for (const char* text : {"cosine=0.998", "bytes=12000000", "auto"}) {
    EXPECT_EQ(to_string(parse(text)), text);
  }
  EXPECT_TRUE(parse("auto").automatic);
  // Four bits hold less than eight.
  EXPECT_LT(parse("auto").cosine, parse_budget("auto", formats::fp8).cosine);
}

TEST(Budget, ErrorsNameTheField) {
  for (const char* text : {"", "auto=1", "cosine", "cosine=", "cosine=1", "cosine=0", "cosine=nan",
                           "cosine=0.9x", "speed=3", "0.99"}) {
    EXPECT_EQ(
        test::error_of([&] { parse_budget(text, formats::fp8); }),
        fmt::format("budget: '{}' is neither auto, cosine=C with C below 1, nor bytes=SIZE", text));
  }
  EXPECT_EQ(test::error_of([&] { parse_budget("bytes=few", formats::fp8); }),
            "budget: 'few' is not a size such as 8GiB");
}

}  // namespace
}  // namespace halftone
