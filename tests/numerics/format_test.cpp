#include "halftone/numerics/format.h"

#include <gtest/gtest.h>

#include <set>

namespace halftone {
namespace {

TEST(Format, NamesAreUniqueAndFindable) {
  std::set<std::string_view> names;
  for (const Format& format : all_formats()) {
    EXPECT_TRUE(names.insert(format.name).second) << format.name;
    ASSERT_TRUE(find_format(format.name).has_value());
    EXPECT_EQ(*find_format(format.name), format);
    EXPECT_EQ(why_invalid(format), "") << format.name;
  }
  EXPECT_FALSE(find_format("fp6").has_value());
  EXPECT_FALSE(find_format("").has_value());
}

TEST(Format, VariantsHaveNamesOfTheirOwnAndAreReadAsWhatTheyVary) {
  Format tiles = formats::nvfp4, better = formats::nvfp4;
  tiles.tile_rows = 16;
  better.four_over_six = true;
  EXPECT_EQ(named_format(tiles), *find_format("nvfp4-16x16"));
  EXPECT_EQ(named_format(better), *find_format("nvfp4-4over6"));
  for (const Format& format : all_formats()) {
    EXPECT_EQ(named_format(format), format) << format.name;
    EXPECT_EQ(plain_format(format), format.element == ElementType::kE2M1 ? formats::nvfp4 : format);
  }
  Format clamped = formats::nvfp4_4over6;
  clamped.min_block_scale = 0x1p-6f;
  EXPECT_EQ(plain_format(clamped).min_block_scale, 0x1p-6f);  // not of how it is rounded
}

TEST(Format, SizesOfRowsThatAreNoMultipleOfTheBlock) {
  EXPECT_EQ(formats::fp8.code_bytes(33), 33);
  EXPECT_EQ(formats::nvfp4.code_bytes(33), 17);
  EXPECT_EQ(formats::mxfp8.scales_per_row(33), 2);
  EXPECT_EQ(formats::nvfp4.scales_per_row(33), 3);
  EXPECT_EQ(formats::nvfp4.scales_per_row(0), 0);
  EXPECT_EQ(formats::fp8.scales_per_row(33), 1);
  EXPECT_EQ(formats::fp8_tensor.scales_per_row(33), 0);
  EXPECT_EQ(formats::bf16.code_bytes(3), 6);
  EXPECT_FALSE(formats::bf16.quantized());
}

TEST(Format, OptionsThatDoNotFitTogetherAreNamed) {
  const auto with = [](Format f, auto change) {
    change(f);
    return why_invalid(f);
  };
  EXPECT_EQ(with(formats::nvfp4, [](Format& f) { f.tile_rows = 16; }), "");
  EXPECT_EQ(with(formats::nvfp4, [](Format& f) { f.four_over_six = true; }), "");
  EXPECT_EQ(with(formats::nvfp4, [](Format& f) { f.min_block_scale = 0x1p-6f; }), "");
  EXPECT_NE(with(formats::nvfp4, [](Format& f) { f.min_block_scale = 0.3f; }), "");
  EXPECT_NE(with(formats::nvfp4, [](Format& f) { f.tile_rows = 8; }), "");
  EXPECT_NE(with(formats::nvfp4, [](Format& f) { f.block = 32; }), "");
  EXPECT_NE(with(formats::nvfp4, [](Format& f) { f.tile_rows = 16, f.four_over_six = true; }), "");
  EXPECT_NE(with(formats::mxfp8, [](Format& f) { f.tile_rows = 16; }), "");
  EXPECT_NE(with(formats::mxfp8, [](Format& f) { f.four_over_six = true; }), "");
  EXPECT_NE(with(formats::fp8, [](Format& f) { f.min_block_scale = 1.0f; }), "");
}

}  // namespace
}  // namespace halftone
