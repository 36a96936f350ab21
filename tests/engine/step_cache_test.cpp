// Steps that resemble the one before do without most blocks, in every family.
#include <gtest/gtest.h>

#include <cmath>

#include "halftone/engine/generate.h"
#include "halftone/nn/block_ends.h"
#include "halftone/passes/compile.h"
#include "halftone/runtime/program.h"
#include "tests/support/count_ops.h"
#include "tests/support/errors.h"
#include "tests/support/fake_device.h"
#include "tests/support/load_pipeline.h"
#include "tests/support/run_graph.h"
#include "tests/support/silent.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tested_options.h"
#include "tests/support/tiny_models.h"

namespace halftone {
namespace {

using test::floats;
using test::relative_error;

class StepCache : public testing::TestWithParam<test::TinyModel> {
 protected:
  StepCache() { GetParam().write(folder_); }
  std::unique_ptr<Pipeline> load(const LoadOptions& options = test::tested_options()) const {
    return test::load_pipeline(folder_, options);
  }
  // Of so many steps that neighbours resemble each other.
  GenerateRequest request(float cache, const std::string& prompt = "two dogs") const {
    GenerateRequest r;
    r.prompt = prompt;
    r.width = GetParam().width;
    r.height = GetParam().height;
    r.steps = 12;
    r.seed = 7;
    r.cache = cache;
    return r;
  }
  static void guide(JobRequest& r) {
    (GetParam().reads_guidance ? r.true_cfg : r.guidance) = GetParam().guidance;
  }

  test::TempDir dir_;
  std::filesystem::path folder_ = dir_ / "model";
};
INSTANTIATE_TEST_SUITE_P(, StepCache, testing::ValuesIn(test::few_tiny_models()),
                         [](const auto& tested) {
                           std::string name = tested.param.family;
                           std::erase_if(name, [](char c) { return std::isalnum(c) == 0; });
                           return name;
                         });

struct Finished {
  std::vector<float> latents;
  std::vector<int> reused, reused_negative;
};
Finished finished(Stepper& stepper, const Job& job) {
  return {floats(stepper.latents(job)), job.reused(0), job.reused(1)};
}
Finished run_alone_cached(Pipeline& pipeline, const JobRequest& request) {
  Stepper stepper(pipeline);
  Job job = stepper.start(request);
  Job* const one[] = {&job};
  while (!job.done()) stepper.step(one);
  return finished(stepper, job);
}

TEST_P(StepCache, AThresholdThatNothingStaysBelowChangesNoBit) {
  const auto pipeline = load();
  GenerateRequest r = request(0);
  guide(r);
  const Finished plain = run_alone_cached(*pipeline, r);
  r.cache = 1e-30f;
  const Finished cached = run_alone_cached(*pipeline, r);
  EXPECT_TRUE(cached.reused.empty());
  if (test::tested_stream().device == nullptr) {
    EXPECT_EQ(cached.latents, plain.latents);
  } else {  // fused rows that are cut form their sums in another order
    EXPECT_LT(relative_error(cached.latents, plain.latents), 1e-4);
  }
}

TEST_P(StepCache, TheMoreMayChangeTheMoreStepsAreReused) {
  const auto pipeline = load();
  const Finished plain = run_alone_cached(*pipeline, request(0));
  size_t before = 0;
  for (const float threshold : {0.05f, 0.2f, 1.0f}) {
    const Finished cached = run_alone_cached(*pipeline, request(threshold));
    EXPECT_GE(cached.reused.size(), before) << threshold;
    before = cached.reused.size();
    // The first step has nothing to reuse, and the last is seen.
    for (const int step : cached.reused) {
      EXPECT_GT(step, 1);
      EXPECT_LT(step, 12);
    }
    const double error = relative_error(cached.latents, plain.latents);
    EXPECT_EQ(error == 0, cached.reused.empty()) << threshold;
    EXPECT_LT(error, 0.5) << threshold;
    EXPECT_EQ(run_alone_cached(*pipeline, request(threshold)).latents, cached.latents);
  }
  EXPECT_GT(before, 2u);
}

// Rows reuse and compute on their own: with other jobs, at other steps, each has its own bits.
TEST_P(StepCache, ARowDoesNotDependOnItsBatch) {
  const auto pipeline = load();
  std::vector<JobRequest> requests = {
      request(0.1f),           request(0.3f, "a red apple, in winter"),
      request(0, "a cat"),     request(0.6f, "a cat"),
      request(0.2f, "a fish"), request(0.2f, "a house")};
  for (size_t i = 0; i < requests.size(); ++i) requests[i].seed = 20 + i;
  guide(requests[3]);
  std::vector<Finished> alone;
  for (const JobRequest& r : requests) alone.push_back(run_alone_cached(*pipeline, r));

  Stepper stepper(*pipeline);
  std::vector<Job> jobs;
  for (const JobRequest& r : requests) jobs.push_back(stepper.start(r));
  Job* const first[] = {&jobs[1], &jobs[4]};
  stepper.step(first);  // these are ahead
  for (;;) {
    std::vector<Job*> open;
    for (Job& job : jobs) {
      if (!job.done()) open.push_back(&job);
    }
    if (open.empty()) break;
    stepper.step(open);
  }
  for (size_t i = 0; i < jobs.size(); ++i) {
    const Finished together = finished(stepper, jobs[i]);
    EXPECT_EQ(together.latents, alone[i].latents) << "job " << i;
    EXPECT_EQ(together.reused, alone[i].reused) << "job " << i;
    EXPECT_EQ(together.reused_negative, alone[i].reused_negative) << "job " << i;
  }
}

// Predictions without some blocks are made as a whole beside steps that reuse.
TEST_P(StepCache, GuidanceAwayFromSkippedBlocksGoesWithIt) {
  const auto pipeline = load();
  if (pipeline->model().denoiser().skippable_blocks() == 0) GTEST_SKIP() << "has no such guidance";
  GenerateRequest r = request(0);
  guide(r);
  r.skip.layers = {1};
  const Finished plain = run_alone_cached(*pipeline, r);
  r.cache = 1e-30f;
  EXPECT_LT(relative_error(run_alone_cached(*pipeline, r).latents, plain.latents), 1e-6);
  r.cache = 0.5f;
  const Finished alone = run_alone_cached(*pipeline, r);
  EXPECT_FALSE(alone.reused.empty());
  Stepper stepper(*pipeline);
  GenerateRequest other = request(0.5f, "a red apple");
  guide(other);
  Job first = stepper.start(r), second = stepper.start(other);
  Job* const both[] = {&first, &second};
  while (!first.done()) stepper.step(both);
  EXPECT_EQ(finished(stepper, first).latents, alone.latents);
  EXPECT_EQ(finished(stepper, second).latents, run_alone_cached(*pipeline, other).latents);

  test::FakeDevice device;
  LoadOptions options;
  options.kernels = &cpu_kernels();
  options.stream = {2, &device};
  const auto there = load(options);
  r.steps = 6;
  const auto planned = static_cast<double>(plan_generate(*there, r).peak());
  generate(*there, r, test::silent);
  EXPECT_LE(static_cast<double>(device.most_held), 1.01 * planned + (64 << 10));
}

TEST_P(StepCache, LowPrecisionIsInvariantToo) {
  LoadOptions options = test::tested_options();
  options.format = formats::fp8;
  options.activations = DType::kBF16;
  const auto pipeline = load(options);
  GenerateRequest r = request(0.3f);
  r.count = 3;
  r.batch = 3;
  const auto together = floats(generate(*pipeline, r, test::silent).latents);
  r.batch = 1;
  EXPECT_EQ(floats(generate(*pipeline, r, test::silent).latents), together);
}

// What reused steps leave out is what they should: nodes of blocks after the first.
TEST_P(StepCache, PartsComputeWhatTheWholeDoesEachNodeOnce) {
  const auto pipeline = load();
  const Denoiser& denoiser = pipeline->model().denoiser();
  const auto graph = denoiser.build(denoiser.smallest_shape(), {DType::kF32, false, true});
  add_cache(*graph);
  int linears = 0;
  std::vector<std::shared_ptr<Graph>> parts;
  for (const auto part : {CachedPart::kFirst, CachedPart::kBlocks, CachedPart::kRest}) {
    parts.push_back(cut(*graph, cut_for_cache(part)));
    linears += test::count_ops(*parts.back(), Op::kLinear);
  }
  EXPECT_EQ(linears, test::count_ops(*graph, Op::kLinear));
  EXPECT_TRUE(parts[2]->outputs().contains("sample"));
  EXPECT_TRUE(parts[2]->inputs().contains(nn::kAfterLastBlock));
  EXPECT_EQ(test::count_ops(*parts[2], Op::kAttention), 0);
  EXPECT_GT(test::count_ops(*parts[1], Op::kAttention), 0);
}

TEST_P(StepCache, DeviceMemoryIsWhatWasPlanned) {
  for (const int batch : {1, 3}) {
    test::FakeDevice device;
    LoadOptions options;
    options.kernels = &cpu_kernels();
    options.stream = {2, &device};
    const auto pipeline = load(options);
    GenerateRequest r = request(0.2f);
    guide(r);
    r.steps = 6;
    r.count = 2 * batch;
    r.batch = batch;
    const auto planned = static_cast<double>(plan_generate(*pipeline, r).peak());
    const auto found = floats(generate(*pipeline, r, test::silent).latents);
    EXPECT_LE(static_cast<double>(device.most_held), 1.01 * planned + (64 << 10)) << batch;
    EXPECT_LE(relative_error(found, floats(generate(*load(), r, test::silent).latents)), 1e-4);
  }
}

TEST(RowCacheDecides, ByTheSumOfChanges) {
  RowCache cache;
  cache.threshold = 0.25f;
  EXPECT_TRUE(cache.must_compute(4, 0));  // the first: nothing is known
  EXPECT_FALSE(cache.must_compute(0.01, 1));
  EXPECT_FALSE(cache.must_compute(0.01, 1));
  EXPECT_TRUE(cache.must_compute(0.01, 1));  // three tenths in sum
  EXPECT_FALSE(cache.must_compute(0.01, 1));
  cache.whole = true;
  EXPECT_TRUE(cache.must_compute(0, 1));
  EXPECT_FALSE(cache.must_compute(0, 1));  // that was for one step
  EXPECT_TRUE(cache.must_compute(std::nan(""), 1));
  EXPECT_FALSE(cache.must_compute(0, 1));
  EXPECT_TRUE(cache.must_compute(0, 0));  // of nothing, nothing is known
  EXPECT_TRUE(cache.must_compute(INFINITY, 1));
}

TEST(RowCacheDecides, StepsAreToldAsRanges) {
  EXPECT_EQ(steps_text({}), "");
  EXPECT_EQ(steps_text({2, 4, 5, 6, 9}), "2, 4-6, 9");
}

TEST(RowCacheDecides, BatchesAreFewPrograms) {
  EXPECT_EQ(batches_of(0), std::vector<int64_t>{});
  EXPECT_EQ(batches_of(1), (std::vector<int64_t>{1}));
  EXPECT_EQ(batches_of(7), (std::vector<int64_t>{4, 2, 1}));
  EXPECT_EQ(batches_of(64), (std::vector<int64_t>{64}));
}

}  // namespace
}  // namespace halftone
