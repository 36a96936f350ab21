#include "halftone/io/quantization_metadata.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "halftone/io/safetensors_writer.h"
#include "tests/support/errors.h"
#include "tests/support/temp_dir.h"

namespace halftone {
namespace {

using test::error_of;
using testing::HasSubstr;

TEST(QuantizationMetadata, EveryFormatAndOptionRoundTrips) {
  QuantizationMetadata metadata;
  int i = 0;
  for (const Format& format : all_formats()) {
    if (format.quantized()) metadata[fmt::format("layer.{}.weight", i++)] = {format, {4, 64}};
  }
  Format floor = formats::mxfp8, clamp = formats::nvfp4, both = formats::nvfp4_4over6;
  floor.rounding = ExponentRounding::kFloor;
  clamp.min_block_scale = 0x1p-6f;
  both.min_block_scale = 0x1p-9f;
  for (const Format& f : {floor, clamp, both}) metadata[fmt::format("x.{}", i++)] = {f, {1, 33}};
  const auto parsed = parse_quantization_metadata(to_json(metadata), "f");
  ASSERT_EQ(parsed.size(), metadata.size());
  for (const auto& [name, entry] : metadata) {
    EXPECT_EQ(parsed.at(name).format, entry.format) << name;
    EXPECT_EQ(parsed.at(name).shape, entry.shape) << name;
  }
}

TEST(QuantizationMetadata, WhatDoesNotFitIsNamed) {
  const auto parse = [](const std::string& entry) {
    return error_of([&] {
      parse_quantization_metadata(R"({"version":1,"tensors":{"a.weight":)" + entry + "}}", "f");
    });
  };
  EXPECT_EQ(parse(R"({"format":"fp8","shape":[2,3],"scale":"channel","rounding":"nearest-even"})"),
            "(no error)");
  EXPECT_EQ(parse(R"({"format":"fp9","shape":[2,3],"scale":"channel","rounding":"nearest-even"})"),
            "f: tensor 'a.weight': unknown format 'fp9'");
  EXPECT_THAT(parse(R"({"format":"bf16","shape":[2,3],"scale":"none","rounding":"nearest-even"})"),
              HasSubstr("unknown format"));
  EXPECT_THAT(parse(R"({"format":"fp8","scale":"channel","rounding":"nearest-even"})"),
              HasSubstr("'shape'"));
  EXPECT_THAT(parse(R"({"format":"fp8","shape":[2],"scale":"channel","rounding":"nearest-even"})"),
              HasSubstr("'shape'"));
  EXPECT_THAT(
      parse(
          R"({"format":"fp8","shape":[1099511627776,1099511627776],"scale":"channel","rounding":"nearest-even"})"),
      HasSubstr("overflows"));
  EXPECT_THAT(parse(R"({"format":"fp8","shape":[2,3]})"), HasSubstr("'rounding'"));
  EXPECT_THAT(
      parse(
          R"({"format":"mxfp8","shape":[2,3],"scale":"block","rounding":"nearest-even","block":16,"scale_layout":"linear","scale_rounding":"rceil"})"),
      HasSubstr("'block' is not 32"));
  EXPECT_THAT(
      parse(
          R"({"format":"mxfp8","shape":[2,3],"scale":"block","rounding":"nearest-even","block":32,"scale_layout":"linear","scale_rounding":"up"})"),
      HasSubstr("scale_rounding"));
  EXPECT_THAT(
      parse(
          R"({"format":"nvfp4","shape":[2,3],"scale":"block","rounding":"nearest-even","block":16,"scale_layout":"linear","order":"high-nibble-first"})"),
      HasSubstr("'order'"));
  const std::string nvfp4 =
      R"({"format":"nvfp4","shape":[2,16],"scale":"block","rounding":"nearest-even","block":16,"scale_layout":"linear","order":"low-nibble-first","min_block_scale":0,"four_over_six":false,"tile_rows":1})";
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string changed = nvfp4;
    return parse(changed.replace(changed.find(from), from.size(), to));
  };
  EXPECT_EQ(parse(nvfp4), "(no error)");
  // Whoever reads nvfp4 reads its variants, which are told by fields alone.
  EXPECT_THAT(to_json({{"a", {formats::nvfp4_4over6, {2, 16}}}}),
              HasSubstr(R"("format":"nvfp4",)"));
  EXPECT_THAT(with("\"nvfp4\"", "\"nvfp4-4over6\""), HasSubstr("unknown format 'nvfp4-4over6'"));
  EXPECT_THAT(with("\"tile_rows\":1", "\"tile_rows\":7"), HasSubstr("'tile_rows'"));
  EXPECT_THAT(with("false", "\"yes\""), HasSubstr("'four_over_six'"));
  EXPECT_THAT(with("\"scale\":\"block\"", "\"scale\":\"channel\""),
              HasSubstr("'scale' is not 'block'"));
  EXPECT_THAT(parse("7"), HasSubstr("a.weight"));
  EXPECT_THAT(error_of([] { parse_quantization_metadata(R"({"version":2,"tensors":{}})", "f"); }),
              HasSubstr("version 1"));
  EXPECT_THAT(error_of([] { parse_quantization_metadata(R"({"version":1})", "f"); }),
              HasSubstr("tensors"));
}

TEST(QuantizationMetadata, LoadsViewsAndRefusesMisshapenParts) {
  const test::TempDir dir;
  auto q = QuantizedTensor::empty(formats::nvfp4, {2, 32});
  const auto save = [&](const Tensor& scales) {
    write_safetensors(dir / "x.safetensors",
                      {{"w", q.codes}, {"w_scale", scales}, {"w_scale_2", q.global_scale}});
    return Checkpoint::open(dir / "x.safetensors");
  };
  const QuantizedEntry entry{formats::nvfp4, {2, 32}};
  const auto good = save(q.scales);
  const auto loaded = load_quantized(good, "w", entry);
  EXPECT_TRUE(loaded.codes.mapped());
  EXPECT_EQ(loaded.byte_size(), q.byte_size());
  const auto bad = save(Tensor::zeros(DType::kF8E4M3, {2, 3}));
  EXPECT_THAT(error_of([&] { load_quantized(bad, "w", entry); }),
              HasSubstr("tensor 'w_scale': is F8_E4M3 [2, 3], but nvfp4 takes F8_E4M3 [2, 2]"));
  EXPECT_THAT(error_of([&] { load_quantized(good, "v", entry); }), HasSubstr("has no tensor 'v'"));
}

}  // namespace
}  // namespace halftone
