// What holds for every family, shown on a tiny model of each.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "halftone/engine/job.h"
#include "halftone/io/safetensors_writer.h"
#include "tests/support/errors.h"
#include "tests/support/fake_device.h"
#include "tests/support/load_pipeline.h"
#include "tests/support/procedural.h"
#include "tests/support/run_graph.h"
#include "tests/support/silent.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tested_options.h"
#include "tests/support/tiny_models.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;
using test::error_of;
using test::floats;
using test::relative_error;
using testing::HasSubstr;

class EveryFamily : public testing::TestWithParam<test::TinyModel> {
 protected:
  EveryFamily() { GetParam().write(folder_); }

  std::unique_ptr<Pipeline> load(const LoadOptions& options = test::tested_options()) const {
    return test::load_pipeline(folder_, options);
  }
  GenerateRequest request(const std::string& prompt = "two dogs") const {
    GenerateRequest r;
    r.prompt = prompt;
    r.width = GetParam().width;
    r.height = GetParam().height;
    r.steps = 3;
    r.seed = 7;
    return r;
  }
  // With a prediction for the negative prompt, too.
  static void guide(JobRequest& r, float strength) {
    (GetParam().reads_guidance ? r.true_cfg : r.guidance) = strength;
  }
  std::string write_adapter(const std::string& name, int64_t rank) const {
    const fs::path file = dir_ / (name + ".safetensors");
    TinyModelRef m = GetParam();
    write_safetensors(
        file, {{m.adapted + ".lora_A.weight", test::procedural_weight(name + "a", {rank, m.in})},
               {m.adapted + ".lora_B.weight", test::procedural_weight(name + "b", {m.out, rank})}});
    return file.string();
  }

  using TinyModelRef = const test::TinyModel&;
  test::TempDir dir_;
  fs::path folder_ = dir_ / "model";
};
INSTANTIATE_TEST_SUITE_P(, EveryFamily, testing::ValuesIn(test::tiny_models()),
                         [](const auto& tested) {
                           std::string name = tested.param.family;
                           std::erase_if(name, [](char c) { return std::isalnum(c) == 0; });
                           return name;
                         });

std::vector<float> run_alone(Pipeline& pipeline, const JobRequest& request) {
  Stepper stepper(pipeline);
  Job job = stepper.start(request);
  Job* const one[] = {&job};
  while (!job.done()) stepper.step(one);
  return floats(stepper.latents(job));
}

TEST_P(EveryFamily, IsFoundByItsFolder) {
  EXPECT_EQ(find_model(folder_).family->name, GetParam().family);
}

TEST_P(EveryFamily, EveryPrecisionRunsAndIsInvariantToTheBatch) {
  GenerateRequest r = request();
  r.count = 2;
  const auto exact = floats(generate(*load(), r, test::silent).latents);
  for (const Format& format : {formats::fp8, formats::fp8_tensor, formats::mxfp8, formats::nvfp4}) {
    LoadOptions options = test::tested_options();
    options.format = format;
    options.activations = DType::kBF16;
    const auto pipeline = load(options);
    EXPECT_EQ(pipeline->model().report().formats.size(), 1u);
    r.batch = 2;
    const auto together = floats(generate(*pipeline, r, test::silent).latents);
    r.batch = 1;
    EXPECT_EQ(floats(generate(*pipeline, r, test::silent).latents), together) << format.name;
    const double error = relative_error(together, exact);
    EXPECT_GT(error, 1e-3) << format.name;
    EXPECT_LT(error, 0.6) << format.name;
  }
}

int64_t encoder_bytes(const Model& model) {
  int64_t bytes = 0;
  for (size_t i = 0; i < model.conditioner().folders().size(); ++i) {
    for (const auto& [name, weight] : model.encoder_part(i).weights()) {
      bytes += byte_size_of(weight);
    }
  }
  return bytes;
}

// Only what encoders give changes, by as much as their format costs, and the denoiser is as it was.
TEST_P(EveryFamily, TextEncodersRunInAPrecisionOfTheirOwn) {
  const auto plain = load();
  const Condition exact = plain->encode("two dogs");
  const int64_t bytes = encoder_bytes(plain->model());
  for (const Format& format : {formats::fp8, formats::mxfp8, formats::nvfp4}) {
    SCOPED_TRACE(std::string(format.name));
    LoadOptions options = test::tested_options();
    options.text_format = format;
    std::unique_ptr<Pipeline> pipeline;
    if (const std::string refused = error_of([&] { pipeline = load(options); });
        refused != "(no error)") {
      EXPECT_NE(format, formats::fp8);  // which takes every width
      EXPECT_THAT(refused, testing::StartsWith("text_precision: text_encoder"));
      EXPECT_THAT(refused, HasSubstr(fmt::format("are no multiple of {}'s block", format.name)));
      continue;
    }
    const LoadReport& report = pipeline->model().report();
    EXPECT_TRUE(report.formats.empty());
    ASSERT_EQ(report.encoders.size(), plain->model().conditioner().folders().size());
    for (const EncoderReport& encoder : report.encoders) {
      EXPECT_EQ(encoder.formats.size(), 1u) << encoder.folder;
      EXPECT_EQ(encoder.formats.count(std::string(format.name)), 1u) << encoder.folder;
    }
    EXPECT_LT(encoder_bytes(pipeline->model()), 0.95 * static_cast<double>(bytes));
    const Condition rounded = pipeline->encode("two dogs");
    for (const auto& [name, tensor] : exact) {
      const double error = relative_error(floats(rounded.at(name)), floats(tensor));
      EXPECT_GT(error, 1e-4) << name;
      EXPECT_LT(error, format == formats::nvfp4 ? 0.5 : 0.35) << name;
    }
    if (format != formats::fp8) continue;
    // With the same texts it is the same model.
    pipeline->remember("two dogs", exact);
    EXPECT_EQ(run_alone(*pipeline, request()), run_alone(*plain, request()));
  }
}

// Jobs at different steps, with different prompts, guidance and lengths of schedules, in one
// forward: each has the bits of a run of its own.
TEST_P(EveryFamily, JobsThatShareAForwardKeepTheirBits) {
  const auto pipeline = load();
  JobRequest a = request("two dogs"), b = request("a red apple on a blue background, in winter");
  JobRequest c = request("a cat");
  b.steps = 5;
  b.seed = 8;
  c.seed = 9;
  guide(c, GetParam().guidance);
  JobRequest d = c;
  d.prompt = "three cats and a very long prompt that has more tokens than the other prompts";
  guide(d, 0.5f * GetParam().guidance);
  const std::vector<JobRequest> requests = {a, b, c, d};
  std::vector<std::vector<float>> alone;
  for (const JobRequest& r : requests) alone.push_back(run_alone(*pipeline, r));
  EXPECT_NE(alone[2], alone[3]);

  Stepper stepper(*pipeline);
  std::vector<Job> jobs;
  for (const JobRequest& r : requests) jobs.push_back(stepper.start(r));
  Job* const first[] = {&jobs[1]};
  stepper.step(first);  // one is ahead
  Job* const all[] = {&jobs[0], &jobs[1], &jobs[2], &jobs[3]};
  for (int i = 0; i < 3; ++i) stepper.step(all);
  stepper.step(first);
  for (size_t i = 0; i < jobs.size(); ++i) {
    EXPECT_TRUE(jobs[i].done());
    EXPECT_EQ(floats(stepper.latents(jobs[i])), alone[i]) << "job " << i;
  }
}

// Guidance away from a prediction without some blocks, which steps in the middle take besides, and
// other jobs at the same step do not notice.
TEST_P(EveryFamily, LayersAreSkippedWhereTheFamilyCan) {
  const auto pipeline = load();
  const int64_t blocks = pipeline->model().denoiser().skippable_blocks();
  JobRequest plain = request("two dogs");
  plain.steps = 11;
  guide(plain, GetParam().guidance);
  JobRequest skips = plain;
  skips.skip.layers = {1};
  const auto said = [&](const JobRequest& r) {
    return error_of([&] { Stepper(*pipeline).start(r); });
  };
  if (blocks == 0) {
    EXPECT_EQ(said(skips), fmt::format("skip_layers: {} has no blocks to leave out",
                                       pipeline->model().family().title));
    return;
  }
  JobRequest others = skips, wrong = skips;
  others.skip.layers = {0, 2};
  others.skip.scale = 1.5f;
  wrong.skip.layers = {blocks};
  EXPECT_EQ(said(wrong),
            fmt::format("skip_layers: {0} is none of the model's {0} blocks, from 0 to "
                        "{1}",
                        blocks, blocks - 1));
  wrong.skip.layers = {0, 1, 2};
  EXPECT_EQ(said(wrong), "skip_layers: leaves no block of the model");
  wrong = skips;
  wrong.guidance = 1;
  EXPECT_EQ(said(wrong), "skip_layers: does nothing without guidance above 1");
  wrong = skips;
  wrong.steps = 5;
  EXPECT_THAT(said(wrong), HasSubstr("skip_layers: does nothing in 5 steps"));

  const std::vector<JobRequest> requests = {plain, skips, others, skips};
  std::vector<std::vector<float>> alone;
  for (const JobRequest& r : requests) alone.push_back(run_alone(*pipeline, r));
  EXPECT_NE(alone[0], alone[1]);
  EXPECT_NE(alone[1], alone[2]);
  JobRequest off = skips;
  off.skip.scale = 0;
  EXPECT_EQ(run_alone(*pipeline, off), alone[0]);
  Stepper stepper(*pipeline);
  std::vector<Job> jobs;
  for (const JobRequest& r : requests) jobs.push_back(stepper.start(r));
  Job* const first[] = {&jobs[3]};
  stepper.step(first);  // one is ahead
  Job* const all[] = {&jobs[0], &jobs[1], &jobs[2], &jobs[3]};
  for (int i = 0; i < 10; ++i) stepper.step(all);
  Job* const rest[] = {&jobs[0], &jobs[1], &jobs[2]};
  stepper.step(rest);
  for (size_t i = 0; i < jobs.size(); ++i) {
    EXPECT_TRUE(jobs[i].done());
    EXPECT_EQ(floats(stepper.latents(jobs[i])), alone[i]) << "job " << i;
  }
}

TEST(SkipLayers, AreListsOfNumbersAndStepsInTheMiddle) {
  EXPECT_EQ(parse_layers("7,8,9", "f"), (std::set<int64_t>{7, 8, 9}));
  EXPECT_EQ(parse_layers("", "f"), std::set<int64_t>{});
  EXPECT_EQ(layers_text({9, 7}), "7,9");
  for (const char* wrong : {",", "7,", ",7", "7 8", "-1", "x", "7,,8", "99999999999999999999"}) {
    EXPECT_EQ(error_of([&] { parse_layers(wrong, "f"); }),
              fmt::format("f: '{}' is no list of numbers such as 7,8,9", wrong));
  }
  const SkipLayers skip{{7}, 1};
  const auto steps = [&](int count) {
    std::vector<int> taken;
    for (int i = 0; i < count; ++i) {
      if (skip.at(i, count)) taken.push_back(i);
    }
    return taken;
  };
  EXPECT_THAT(steps(28), testing::ElementsAre(1, 2, 3, 4, 5));
  EXPECT_THAT(steps(10), testing::ElementsAre(1));
  EXPECT_THAT(steps(5), testing::ElementsAre());
  EXPECT_EQ(steps(200).front(), 3);
  EXPECT_EQ(steps(200).back(), 39);
  EXPECT_FALSE(SkipLayers{}.at(1, 10));
}

TEST_P(EveryFamily, RowsOfOneBatchMayHaveDifferentAdapters) {
  const auto pipeline = load();
  const auto x = pipeline->model().load_adapter(write_adapter("x", 4));
  const auto y = pipeline->model().load_adapter(write_adapter("y", 3));
  JobRequest none = request(), one = request(), two = request(), both = request();
  one.adapters = {{x, 1.0f}};
  two.adapters = {{y, 0.7f}};
  both.adapters = {{y, 0.3f}, {x, -0.5f}};
  const std::vector<JobRequest> requests = {none, one, two, both};
  std::vector<std::vector<float>> alone;
  for (const JobRequest& r : requests) alone.push_back(run_alone(*pipeline, r));
  for (size_t i = 1; i < alone.size(); ++i) {
    EXPECT_GT(relative_error(alone[i], alone[0]), 1e-4) << i;
  }
  EXPECT_NE(alone[1], alone[2]);

  Stepper stepper(*pipeline);
  std::vector<Job> jobs;
  for (const JobRequest& r : requests) jobs.push_back(stepper.start(r));
  Job* const all[] = {&jobs[0], &jobs[1], &jobs[2], &jobs[3]};
  for (int i = 0; i < 3; ++i) stepper.step(all);
  for (size_t i = 0; i < jobs.size(); ++i) {
    EXPECT_EQ(floats(stepper.latents(jobs[i])), alone[i]) << "job " << i;
  }
}

TEST_P(EveryFamily, TwoThreadsShareAModel) {
  const auto pipeline = load();
  const std::shared_ptr<const Model> model = pipeline->shared_model();
  const auto adapter = model->load_adapter(write_adapter("x", 4));
  std::vector<JobRequest> requests(2, request());
  requests[1].prompt = "a cat in the snow";
  requests[1].adapters = {{adapter, 1.0f}};
  std::vector<std::vector<float>> alone, found(2);
  for (const JobRequest& r : requests) alone.push_back(run_alone(*pipeline, r));
  std::vector<std::thread> threads;
  for (size_t i = 0; i < requests.size(); ++i) {
    threads.emplace_back([&, i] {
      Pipeline own(model);
      found[i] = run_alone(own, requests[i]);
      found[i] = run_alone(own, requests[i]);  // with programs that are there
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(found, alone);
}

TEST_P(EveryFamily, OtherSchedulersRunAndDiffer) {
  const auto pipeline = load();
  const SchedulerConfig own = pipeline->model().sampling().scheduler;
  JobRequest r = request();
  r.steps = 6;
  std::vector<std::vector<float>> results = {run_alone(*pipeline, r)};
  const bool flow = own.prediction == Prediction::kVelocity;
  for (const SchedulerChoice& choice : scheduler_choices()) {
    if (!(flow ? choice.flow : choice.diffusion)) {
      EXPECT_THAT(error_of([&] { with_scheduler(own, choice.name); }), HasSubstr("scheduler"));
      continue;
    }
    r.scheduler = with_scheduler(own, choice.name);
    const auto result = run_alone(*pipeline, r);
    EXPECT_LT(relative_error(result, results[0]), 1.5) << choice.name;
    EXPECT_EQ(result == results[0], choice.name == (flow ? "flow-euler" : "euler")) << choice.name;
    results.push_back(result);
  }
  EXPECT_GE(results.size(), 4u);
}

// A recipe changes single weights: the rest is where it was.
TEST_P(EveryFamily, ARecipeReloadsNothingElse) {
  const auto pipeline = load();
  const std::shared_ptr<const Model> plain = pipeline->shared_model();
  const std::string weight = plain->linears()[0].weight;
  QuantizeRecipe recipe = plain->denoiser().recipe(formats::fp8);
  recipe.include = {weight};
  const auto changed = plain->with_recipe(recipe);
  int differ = 0;
  for (const auto& [name, before] : plain->denoiser_part().weights()) {
    const Weight& after = changed->denoiser_part().weights().at(name);
    const auto* tensor = std::get_if<Tensor>(&after);
    const bool same = tensor != nullptr && tensor->address() == std::get<Tensor>(before).address();
    differ += same ? 0 : 1;
    EXPECT_EQ(same, name != weight) << name;
  }
  EXPECT_EQ(differ, 1);
  EXPECT_EQ(changed->report().formats, (std::map<std::string, int>{{"fp8", 1}}));
  Pipeline quantized(changed);
  const auto a = run_alone(*pipeline, request()), b = run_alone(quantized, request());
  EXPECT_NE(a, b);
  EXPECT_LT(relative_error(b, a), 0.3);
}

// Between steps nothing goes up but a few numbers, and nothing comes down.
TEST_P(EveryFamily, LatentsStayOnTheDevice) {
  test::FakeDevice device;
  LoadOptions options;
  options.kernels = &cpu_kernels();
  options.stream = {2, &device};
  const auto pipeline = load(options);
  Stepper stepper(*pipeline);
  const SchedulerConfig own = pipeline->model().sampling().scheduler;
  const char* const euler = own.prediction == Prediction::kVelocity ? "flow-euler" : "euler";
  for (const char* scheduler : {euler, "dpm++-2m-sde"}) {
    JobRequest r = request();
    guide(r, GetParam().guidance);
    r.scheduler = with_scheduler(own, scheduler);
    Job job = stepper.start(r);
    Job* const one[] = {&job};
    stepper.step(one);
    const int uploads = device.uploads, downloads = device.downloads;
    stepper.step(one);
    // time, guidance, factors; and what the noise is drawn from
    EXPECT_EQ(device.uploads - uploads, r.scheduler->stochastic ? 4 : 3) << scheduler;
    EXPECT_EQ(device.downloads, downloads);
    stepper.step(one);
    EXPECT_LE(relative_error(floats(stepper.latents(job)), run_alone(*load(), r)), 2e-5);
  }
}

// By every byte that is asked of it: weights, values, scratch, inputs of all programs, latents.
TEST_P(EveryFamily, DeviceMemoryIsWhatWasPlanned) {
  for (const int64_t batch : {1, 3}) {
    test::FakeDevice device;
    LoadOptions options;
    options.kernels = &cpu_kernels();
    options.stream = {2, &device};
    const auto pipeline = load(options);
    GenerateRequest r = request();
    guide(r, GetParam().guidance);
    r.scheduler = with_scheduler(pipeline->model().sampling().scheduler, "dpm++-2m");
    r.count = 2 * batch;
    r.batch = batch;
    const auto planned = static_cast<double>(plan_generate(*pipeline, r).peak());
    generate(*pipeline, r, test::silent);
    EXPECT_NEAR(static_cast<double>(device.most_held), planned,
                0.01 * planned + (64 << 10))  // weights begin at multiples of 256 bytes
        << batch;
  }
}

// Where a rule takes the negative prompt's prediction as its start, it begins above 1, as in
// diffusers.
TEST_P(EveryFamily, GuidanceIsOffWhereDiffusersHasItOff) {
  const auto pipeline = load();
  JobRequest plain = request(), weak = request();
  guide(weak, 0.5f);
  const bool from_negative =
      pipeline->model().sampling().guidance_rule == GuidanceRule::kFromNegative;
  EXPECT_EQ(run_alone(*pipeline, weak) == run_alone(*pipeline, plain), from_negative);
}

// What a network is told of guidance is for its own row alone.
TEST_P(EveryFamily, GuidanceThatIsReadIsOfItsRow) {
  if (!GetParam().reads_guidance) GTEST_SKIP() << "reads none";
  const auto pipeline = load();
  JobRequest a = request(), b = request();
  a.guidance = 1;
  b.guidance = 5;
  const auto alone_a = run_alone(*pipeline, a), alone_b = run_alone(*pipeline, b);
  EXPECT_GT(relative_error(alone_a, alone_b), 1e-3);
  Stepper stepper(*pipeline);
  Job first = stepper.start(a), second = stepper.start(b);
  Job* const both[] = {&first, &second};
  for (int i = 0; i < 3; ++i) stepper.step(both);
  EXPECT_EQ(floats(stepper.latents(first)), alone_a);
  EXPECT_EQ(floats(stepper.latents(second)), alone_b);
}

}  // namespace
}  // namespace halftone
