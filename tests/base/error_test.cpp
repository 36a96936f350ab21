#include "halftone/base/error.h"

#include <gtest/gtest.h>

namespace halftone {
namespace {

TEST(Error, SaysWhereAndWhyOnOneLine) {
  const Error error(ErrorCode::kInvalidInput, "model.safetensors", "tensor '{}': {} bytes", "a\nb",
                    3);
  EXPECT_EQ(error.code(), ErrorCode::kInvalidInput);
  EXPECT_EQ(error.where(), "model.safetensors");
  EXPECT_STREQ(error.what(), "model.safetensors: tensor 'a\\x0ab': 3 bytes");
}

TEST(Printable, KeepsTextAndEscapesWhatBreaksALine) {
  EXPECT_EQ(printable("layers.0.weight"), "layers.0.weight");
  EXPECT_EQ(printable("größe 🍎"), "größe 🍎");
  EXPECT_EQ(printable("a\tb\x1b[31m"), "a\\x09b\\x1b[31m");
  EXPECT_EQ(printable("\xc2\x85"), "\\xc2\\x85");           // C1 control
  EXPECT_EQ(printable("\xff\xc0\x80"), "\\xff\\xc0\\x80");  // malformed
  EXPECT_EQ(printable("\xed\xa0\x80"), "\\xed\\xa0\\x80");  // surrogate
  EXPECT_EQ(printable("\xe2\x82"), "\\xe2\\x82");           // cut short
}

TEST(Printable, CutsWithoutSplittingACharacter) {
  EXPECT_EQ(printable("abcdef", 3), "abc...");
  EXPECT_EQ(printable("a🍎b", 3), "a...");
}

}  // namespace
}  // namespace halftone
