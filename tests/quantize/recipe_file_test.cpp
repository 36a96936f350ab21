// Recipes and certificates as text, there and back.
#include "halftone/quantize/recipe_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "halftone/base/error.h"
#include "halftone/engine/certificate.h"
#include "tests/support/errors.h"

namespace halftone {
namespace {

RecipeFile example() {
  RecipeFile file;
  file.family = "z-image";
  file.recipe.format = formats::nvfp4;
  file.recipe.include = {"layers.*.weight"};
  file.recipe.keep = {{"*norm*", "norms \"stay\""}};
  file.recipe.rules = {{"layers.0.*", formats::bf16, true},
                       {"layers.1.*", formats::fp8, false},
                       {"layers.2.*", formats::mxfp8, true},
                       {"layers.3.*", formats::nvfp4_4over6, true},
                       {"layers.4.*", formats::nvfp4_16x16, true}};
  file.recipe.input_scales = {{"layers.3.w.weight", 0.1f}, {"layers.4.w.weight", 3.0e-5f}};
  file.rounding = Rounding::kCompensated;
  file.cuts = {"layers.5.w.weight", "blocks.*"};
  file.calibrated = {{"a cat", "\\ and \"quotes\""}, 64, 96, 20, 7};
  file.certified = {"a dog", "two ducks"};
  file.origin = {{"model_hash", "00ff"}};
  return file;
}

TEST(RecipeFile, ComesBackAsItWas) {
  const RecipeFile file = example();
  const RecipeFile back = parse_recipe(to_toml(file), "r.toml");
  EXPECT_EQ(to_toml(back).substr(0, 200), to_toml(file).substr(0, 200));
  EXPECT_EQ(back.recipe.format, formats::nvfp4);
  ASSERT_EQ(back.recipe.rules.size(), 5u);
  EXPECT_EQ(back.recipe.rules[3].format, formats::nvfp4_4over6);
  EXPECT_EQ(back.recipe.rules[4].format, formats::nvfp4_16x16);
  EXPECT_EQ(back.recipe.rules[1].format, formats::fp8);
  EXPECT_FALSE(back.recipe.rules[1].activations);
  EXPECT_TRUE(back.recipe.rules[2].activations);
  EXPECT_EQ(back.recipe.input_scales, file.recipe.input_scales);  // every bit
  EXPECT_EQ(back.recipe.keep[0].reason, file.recipe.keep[0].reason);
  EXPECT_EQ(back.rounding, Rounding::kCompensated);
  EXPECT_EQ(back.cuts, file.cuts);
  ASSERT_TRUE(back.calibrated);
  EXPECT_EQ(back.calibrated->prompts, file.calibrated->prompts);
  EXPECT_EQ(back.calibrated->seed, 7);
  EXPECT_EQ(back.certified, file.certified);
}

TEST(RecipeFile, PromptsOfAnyCharactersComeBack) {
  RecipeFile file = example();
  std::string all;
  file.calibrated->prompts.clear();
  for (int byte = 1; byte < 128; ++byte) {
    file.calibrated->prompts.emplace_back(1, static_cast<char>(byte));
    all += static_cast<char>(byte);
  }
  file.calibrated->prompts.push_back(all);
  file.calibrated->prompts.emplace_back("\0 in it", 7);
  file.calibrated->prompts.emplace_back("\xC2\x85 \xE2\x80\xA8 \xF0\x9F\x98\x80");  // NEL, LS
  file.certified = file.calibrated->prompts;
  file.recipe.keep = {{all, all}};
  const RecipeFile back = parse_recipe(to_toml(file), "r.toml");
  EXPECT_EQ(back.calibrated->prompts, file.calibrated->prompts);
  EXPECT_EQ(back.certified, file.certified);
  EXPECT_EQ(back.recipe.keep[0].reason, all);

  file.certified = {"not \xFF text"};
  try {
    to_toml(file);
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "recipe: 'not \\xff text' is not UTF-8");
  }
}

void expect_refused(const std::string& text, const std::string& reason) {
  try {
    parse_recipe(text, "r.toml");
    FAIL() << text;
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(reason), std::string::npos) << error.what();
  }
}

TEST(RecipeFile, WhatDoesNotFitIsNamedWithItsLine) {
  const std::string start = "version = 1\nfamily = \"z-image\"\nformat = \"fp8\"\n";
  EXPECT_NO_THROW(parse_recipe(start, "r.toml"));
  expect_refused("version = ", "line 1");
  expect_refused("version = 2", "not a recipe of version 1");
  expect_refused(start + "colour = 3\n", "line 4: unknown key 'colour'");
  expect_refused(start + "[[layer]]\nmatch = \"a\"\nformat = \"fp3\"\n",
                 "line 6: 'fp3' is no format");
  expect_refused(start + "[[layer]]\nformat = \"fp8\"\n", "'match' is missing");
  expect_refused(start + "[layer]\nmatch = \"a\"\n", "is not [[layer]]");
  expect_refused(start + "rounding = \"up\"\n", "'rounding' is neither");
}

// Every field, with every type and number that it cannot be, is named.
TEST(RecipeFile, FieldsOfAnotherTypeOrOutOfRangeAreNamed) {
  const std::string start = "version = 1\nfamily = \"z-image\"\nformat = \"fp8\"\n";
  const std::string values[] = {"3",     "-1", "1e308", "-0.5", "nan",        "inf",    "true",
                                "\"x\"", "[]", "[1]",   "{}",   "1979-05-27", "{a = 1}"};
  const auto each_but = [&](std::initializer_list<std::string> fitting, const auto& refuse) {
    for (const std::string& value : values) {
      if (std::find(fitting.begin(), fitting.end(), value) == fitting.end()) refuse(value);
    }
  };
  each_but({},
           [](const std::string& v) { expect_refused("version = " + v, "'version' is not 1"); });
  each_but({"\"x\""}, [](const std::string& v) {
    expect_refused("version = 1\nfamily = " + v, "line 2: 'family' is not a string");
    expect_refused("version = 1\nfamily = \"a\"\nformat = " + v, "line 3: 'format' is not a s");
  });
  each_but({"\"x\""}, [&](const std::string& v) {
    expect_refused(start + "rounding = " + v, "line 4: 'rounding' is not a string");
    expect_refused(start + "[[select]]\nmatch = " + v, "line 5: 'match' is not a string");
    expect_refused(start + "[[keep]]\nmatch = " + v, "line 5: 'match' is not a string");
    expect_refused(start + "[[keep]]\nmatch = \"a\"\nreason = " + v, "'reason' is not a string");
    const std::string layer = start + "[[layer]]\nmatch = \"a\"\n";
    expect_refused(layer + "format = " + v, "line 6: 'format' is not a string");
    expect_refused(layer + "format = \"fp8\"\ninputs = " + v, "'inputs' is not a string");
  });
  each_but({"[]"}, [&](const std::string& v) {
    for (const std::string field : {"select", "keep", "layer"}) {
      expect_refused(start + field + " = " + v, "line 4: '" + field + "' is not [[" + field);
    }
  });
  each_but({"{}", "{a = 1}"}, [&](const std::string& v) {
    for (const std::string field : {"calibration", "certificate", "input_scales", "origin"}) {
      expect_refused(start + field + " = " + v, "line 4: '" + field + "' is not a table");
    }
  });
  each_but({"3"}, [&](const std::string& v) {
    expect_refused(start + "[input_scales]\n\"b.w\" = " + v, "line 5: 'input_scales' of 'b.w'");
    for (const std::string field : {"width", "height", "steps", "seed"}) {
      std::string text = start + "[calibration]\nprompts = [\"a\"]\n" + field + " = " + v + "\n";
      for (const std::string other : {"width", "height", "steps", "seed"}) {
        if (other != field) text += other + " = 1\n";
      }
      expect_refused(text, "line 6: '" + field + "' is not a whole number from");
    }
  });
  const std::string calibration =
      start + "[calibration]\nprompts = [\"a\"]\nwidth = 1\nheight = 1\nsteps = 1\nseed = 1\n";
  each_but({"3", "1.5"}, [&](const std::string& v) {
    expect_refused(calibration + "guidance = " + v, "line 10: 'guidance' is not a number");
  });
  expect_refused(calibration + "guidance = -1", "'guidance' is not a number from 0 to 100");
  expect_refused(calibration + "guidance = nan", "'guidance' is not a number from 0 to 100");
  for (const char* scheduler : {"3", "[]", "\"heun\""}) {
    expect_refused(calibration + "scheduler = " + scheduler, "'scheduler' is not the name of one");
  }
  for (const char* scale : {"0", "0.0", "1e-320", "1e38"}) {
    expect_refused(start + "[input_scales]\na = " + scale, "'input_scales' of 'a' is not a number");
  }
  each_but({}, [&](const std::string& v) {
    expect_refused(start + "[certificate]\nprompts = " + v, "line 5: ");
    expect_refused(start + "[certificate]\nprompts = " + v, "'prompts' is");
  });
  for (const std::string section : {"[[select]]\nmatch = \"a\"", "[[keep]]\nmatch = \"a\"",
                                    "[[layer]]\nmatch = \"a\"\nformat = \"fp8\"", "[calibration]",
                                    "[certificate]\nprompts = [\"a\"]"}) {
    expect_refused(start + section + "\nother = 1", "unknown key 'other'");
  }
}

TEST(Certificate, ComesBackAndMeetsAThreshold) {
  Certificate c;
  c.model_hash = "ab";
  c.recipe_hash = "cd";
  c.reference = "bf16";
  c.precision = "fp8";
  c.pictures = 8;
  c.steps = 20;
  c.velocity_cosine = {0.9991, 0.9995, 0.998, 0.997};
  c.ssim = {0.98, 0.99, 0.97, 0.95};
  c.velocity_error = 0.04;
  const auto back = certificate_in({{kCertificateKey, to_json(c)}}, "f");
  ASSERT_TRUE(back);
  EXPECT_EQ(to_json(*back), to_json(c));
  EXPECT_TRUE(back->meets(0.999));
  EXPECT_FALSE(back->meets(0.9995));
  EXPECT_FALSE(certificate_in({}, "f"));
  EXPECT_THROW(parse_certificate("{\"version\":1}", "f"), Error);
  EXPECT_THROW(parse_certificate("{\"version\":2}", "f"), Error);
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = to_json(c);
    text.replace(text.find(from), from.size(), to);
    return test::error_of([&] { parse_certificate(text, "f"); });
  };
  for (const char* wrong : {"1e300", "9223372036854775808", "-1", "\"8\"", "null", "8.5"}) {
    EXPECT_THAT(with("\"pictures\":8", std::string("\"pictures\":") + wrong),
                testing::HasSubstr("f: 'pictures'"))
        << wrong;
  }
  EXPECT_EQ(with("\"mean\":0.9991", "\"mean\":[]"), "f: 'velocity_cosine.mean' is not a number");
}

}  // namespace
}  // namespace halftone
