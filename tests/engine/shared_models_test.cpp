// Weights are in memory once, whoever loads them, and a run that is ended ends nobody else's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "halftone/base/error.h"
#include "halftone/engine/checks.h"
#include "halftone/engine/engine.h"
#include "tests/support/errors.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_models.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;

class SharedModels : public testing::Test {
 protected:
  SharedModels() { tiny_.write(folder_); }

  ModelSpec spec(const std::string& precision = "auto") const {
    ModelSpec spec;
    spec.path = folder_.string();
    spec.precision = precision;
    spec.device = "cpu";
    return spec;
  }
  GenerateRequest request(const LoadedModel& loaded) const {
    GenerateRequest request = loaded.request("two dogs");
    request.width = tiny_.width;
    request.height = tiny_.height;
    request.steps = 2;
    return request;
  }

  const test::TinyModel& tiny_ = test::tiny_models()[0];
  test::TempDir dir_;
  fs::path folder_ = dir_ / "model";
  Engine engine_;
};

TEST_F(SharedModels, TheSameFilesInTheSameWayAreLoadedOnce) {
  const LoadedModel first = engine_.load(spec());
  EXPECT_EQ(engine_.load(spec()).model, first.model);
  EXPECT_NE(engine_.load(spec("fp8")).model, first.model);
  ModelSpec texts = spec();
  texts.text_precision = "fp8";
  EXPECT_NE(engine_.load(texts).model, first.model);
  ModelSpec serial = spec();
  serial.threads = 1;
  if (first.threads > 1) {
    EXPECT_NE(engine_.load(serial).model, first.model);
  }
}

TEST_F(SharedModels, TextPrecisionIsSaidAndRefusedByName) {
  ModelSpec texts = spec();
  LoadedModel loaded = engine_.load(texts);
  EXPECT_EQ(loaded.text_precision.used, "fp32");
  EXPECT_EQ(loaded.text_precision.how, "native");
  texts.text_precision = "bf16";
  EXPECT_EQ(engine_.load(texts).text_precision.used, "bf16");
  texts.text_precision = "fp8";
  loaded = engine_.load(texts);
  EXPECT_EQ(loaded.text_precision.used, "fp8");
  EXPECT_THAT(loaded.text_precision.why, testing::HasSubstr("linears of text encoders in fp8"));
  EXPECT_EQ(loaded.precision.used, "fp32");
  texts.text_precision = "fp3";
  EXPECT_THAT(test::error_of([&] { check(texts); }),
              testing::StartsWith("text_precision: 'fp3' is none of auto, fp32"));
}

TEST_F(SharedModels, FilesThatHaveChangedAreRead) {
  const LoadedModel first = engine_.load(spec());
  const fs::path weights = folder_ / "transformer/diffusion_pytorch_model.safetensors";
  ASSERT_TRUE(fs::exists(weights));
  fs::copy_file(weights, dir_ / "copy");
  fs::rename(dir_ / "copy", weights);
  EXPECT_NE(engine_.load(spec()).model, first.model);
}

TEST_F(SharedModels, WhoIsCancelledIsAlone) {
  ModelSpec ended = spec();
  ended.cancelled = [] { return true; };
  const LoadedModel first = engine_.load(ended), second = engine_.load(spec());
  ASSERT_EQ(first.model, second.model);
  const auto run = [&](const LoadedModel& loaded) {
    return generate(*loaded.pipeline, request(loaded), [](const Progress&) {});
  };
  EXPECT_THROW(run(first), Error);
  EXPECT_EQ(run(second).images.size(), 1u);
}

}  // namespace
}  // namespace halftone
