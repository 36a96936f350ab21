// Of a picture that a network is trained on, what it is told of its size and its crop.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "halftone/engine/model.h"
#include "halftone/training/examples.h"
#include "tests/support/data.h"
#include "tests/support/load_pipeline.h"
#include "tests/support/run_graph.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tested_options.h"
#include "tests/support/tiny_models.h"

namespace halftone {
namespace {

using testing::ElementsAre;

TEST(SizesOfExamples, AreThoseOfThePictureAndItsCrop) {
  const auto& models = test::tiny_models();
  const auto sdxl =
      std::ranges::find_if(models, [](const auto& model) { return model.family == "sdxl"; });
  ASSERT_NE(sdxl, models.end());
  const test::TempDir dir;
  sdxl->write(dir / "model");
  std::filesystem::create_directories(dir / "cache");
  const auto pipeline = test::load_pipeline(dir / "model", test::tested_options());
  ExampleCache cache(dir / "cache");
  ExampleMaker maker(*pipeline, cache, 16);
  const Dataset data = {{{test::kData / "pictures" / "plain.png", "a cat"}}, {}};
  maker.add(data, 1, [](const Preparing&) {});
  const auto& examples = maker.so_far().examples;
  ASSERT_EQ(examples.size(), 1u);
  // 28 x 20, brought to 16 x 16: of 22.4 x 16 pixels the middle 16 x 16.
  EXPECT_EQ(examples[0].latents.shape(), (Shape{4, 8, 8}));
  EXPECT_THAT(test::floats(examples[0].condition.at(kSizesOfCondition)),
              ElementsAre(20, 28, 0, 3, 16, 16));
  EXPECT_FALSE(maker.text("a cat").contains(kSizesOfCondition));
}

}  // namespace
}  // namespace halftone
