// Conditions that hold a vector beside their text, on their whole way: from two encoders, through
// steps that jobs share, files of a cache and a trainer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "halftone/engine/job.h"
#include "halftone/training/examples.h"
#include "tests/support/errors.h"
#include "tests/support/pooled_family.h"
#include "tests/support/run_graph.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tested_options.h"

namespace halftone {
namespace {

using test::error_of;
using test::floats;
using testing::HasSubstr;

class Vectors : public testing::Test {
 protected:
  Vectors()
      : pipeline_(Model::load(test::write_pooled_model(dir_ / "model", test::pooled_family()),
                              test::tested_options())) {}

  JobRequest request(const std::string& prompt, float guidance) const {
    JobRequest r;
    r.prompt = prompt;
    r.width = 12;
    r.height = 8;
    r.steps = 3;
    r.seed = 7;
    r.guidance = guidance;
    return r;
  }
  std::vector<float> run(std::vector<JobRequest> requests, size_t wanted) {
    Stepper stepper(pipeline_);
    std::vector<Job> jobs;
    std::vector<Job*> all;
    for (const JobRequest& r : requests) jobs.push_back(stepper.start(r));
    for (Job& job : jobs) all.push_back(&job);
    while (!jobs[0].done()) stepper.step(all);
    return floats(stepper.latents(jobs[wanted]));
  }
  // Of every step.
  std::vector<double> losses(const std::vector<Condition>& conditions, const Condition& none) {
    TrainRules rules;
    rules.steps = 3;
    rules.batch = 2;
    rules.rank = 2;
    rules.caption_dropout = none.empty() ? 0 : 0.5;
    std::vector<TrainExample> examples;
    for (size_t i = 0; i < conditions.size(); ++i) {
      examples.push_back({test::random_tensor({4, 4, 6}, 60 + i), conditions[i]});
    }
    Trainer trainer(pipeline_.shared_model(), examples, rules, none);
    EXPECT_GT(trainer.plan().peak(), 0);
    std::vector<double> losses;
    while (!trainer.done()) losses.push_back(trainer.step().loss);
    return losses;
  }

  test::TempDir dir_;
  Pipeline pipeline_;
};

TEST_F(Vectors, ComeFromAnEncoderOfTheirOwnAndReachThePrediction) {
  const Condition one = pipeline_.encode("a cat"), other = pipeline_.encode("dogs");
  EXPECT_EQ(one.at("text").shape(), (Shape{test::kPooledTokens, test::kPooledText}));
  EXPECT_EQ(one.at("pooled").shape(), Shape{test::kPooledWidth});
  EXPECT_NE(floats(one.at("pooled")), floats(other.at("pooled")));
  const Tensor latents = test::random_tensor({2, 4, 4, 6}, 1);
  SamplerStep step;
  step.sigma = 0.7;
  const SamplerStep* const at[] = {&step, &step};
  Condition changed = one;
  changed["pooled"] = other.at("pooled");
  const Condition* const rows[] = {&one, &changed};
  const Condition* const same[] = {&one, &one};
  const auto y = floats(pipeline_.predict(latents, at, {rows, {}}));
  const auto z = floats(pipeline_.predict(latents, at, {same, {}}));
  const auto half = static_cast<std::ptrdiff_t>(y.size() / 2);
  EXPECT_TRUE(std::equal(y.begin(), y.begin() + half, z.begin()));
  EXPECT_FALSE(std::equal(y.begin() + half, y.end(), z.begin() + half));
}

TEST_F(Vectors, AreEachOfTheirOwnRow) {
  for (const float guidance : {0.0f, 4.0f}) {
    const JobRequest a = request("a cat", guidance), b = request("two dogs", guidance);
    const auto alone = run({b}, 0);
    EXPECT_NE(alone, run({a}, 0));
    EXPECT_EQ(run({a, b}, 1), alone);
    EXPECT_EQ(run({b, a}, 0), alone);
  }
}

TEST_F(Vectors, GoThroughTheCacheToTheTrainer) {
  const std::vector<std::string> captions = {"a cat", "dogs", "", "birds"};
  std::vector<Condition> made[2];
  for (int time = 0; time < 2; ++time) {
    ExampleCache cache(dir_ / "cache");
    std::filesystem::create_directories(dir_ / "cache");
    ExampleMaker maker(pipeline_, cache, 16);
    for (const std::string& caption : captions) made[time].push_back(maker.text(caption));
    EXPECT_EQ(cache.found(), time == 0 ? 0 : 4);
  }
  for (size_t i = 0; i < captions.size(); ++i) {
    const Condition encoded = pipeline_.encode(captions[i]);
    ASSERT_EQ(made[1][i].size(), encoded.size());
    for (const auto& [name, tensor] : encoded) {
      EXPECT_EQ(floats(made[1][i].at(name)), floats(tensor)) << captions[i] << " " << name;
    }
  }
  for (const Condition& none : {Condition{}, made[1][2]}) {
    const auto losses_of_files = losses(made[1], none);
    std::vector<Condition> encoded;
    for (const std::string& caption : captions) encoded.push_back(pipeline_.encode(caption));
    EXPECT_EQ(losses(encoded, none), losses_of_files);
    for (Condition& c : encoded) c["pooled"] = Tensor::zeros(DType::kF32, {test::kPooledWidth});
    EXPECT_NE(losses(encoded, none), losses_of_files);
  }
}

TEST_F(Vectors, ThatDoNotFitAreRefused) {
  const auto error = [&](const Family& family) {
    return error_of([&] { ModelParts::read(test::write_pooled_model(dir_ / "other", family)); });
  };
  EXPECT_THAT(error(test::family_with_wider_vectors()),
              HasSubstr("components do not fit: a vector 'pooled' of 7 for a transformer that "
                        "takes one of 5"));
  EXPECT_THAT(error(test::family_without_vectors()),
              HasSubstr("components do not fit: no vector 'pooled' for a transformer that takes "
                        "one of 5"));
}

}  // namespace
}  // namespace halftone
