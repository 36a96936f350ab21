// Gradients on their way to other processes while the backward pass goes on: to the same bits, and
// in less time.
#include "halftone/training/gradient_sums.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "halftone/training/trainer.h"
#include "tests/support/errors.h"
#include "tests/support/fake_device.h"
#include "tests/support/load_pipeline.h"
#include "tests/support/mirrored_collective.h"
#include "tests/support/run_graph.h"
#include "tests/support/sanitizers.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tested_options.h"
#include "tests/support/tiny_models.h"

namespace halftone {
namespace {

using test::MirroredCollective;

class SummedGradients : public testing::Test {
 protected:
  SummedGradients() {
    test::tiny_models()[0].write(dir_ / "model");
    rules_.steps = 4;
    rules_.batch = 2;
    rules_.rank = 4;
    rules_.alpha = 8;
    rules_.optimizer.learning_rate = 1e-2f;
    rules_.bucket = 512;
  }

  struct Run {
    std::vector<TrainStep> steps;
    std::map<std::string, Tensor> state;
  };
  Run run(Collective* processes, const LoadOptions& options) {
    const auto pipeline = test::load_pipeline(dir_ / "model", options);
    Trainer trainer(pipeline->model().without_encoders(), examples(*pipeline), rules_, {},
                    processes);
    Run made;
    while (!trainer.done()) made.steps.push_back(trainer.step());
    made.state = trainer.state().tensors;
    for (auto& [name, tensor] : made.state) tensor = tensor.clone();
    return made;
  }
  static LoadOptions on_cpu() {
    LoadOptions options;
    options.kernels = &cpu_kernels();
    options.stream = {1};
    return options;
  }
  std::vector<TrainExample> examples(Pipeline& pipeline) const {
    const test::TinyModel& tiny = test::tiny_models()[0];
    const Shape shape = pipeline.model().latent_shape(tiny.width, tiny.height);
    std::vector<TrainExample> all;
    for (uint64_t i = 0; i < 4; ++i) {  // texts of several lengths
      all.push_back({test::random_tensor({shape[1], shape[2], shape[3]}, 60 + i),
                     pipeline.encode(i % 2 == 0 ? "a cat" : "two dogs on a hill in winter")});
    }
    return all;
  }
  static void expect_same(const Run& a, const Run& b) {
    ASSERT_EQ(a.steps.size(), b.steps.size());
    for (size_t i = 0; i < a.steps.size(); ++i) {
      EXPECT_EQ(a.steps[i].loss, b.steps[i].loss) << i;
      EXPECT_EQ(a.steps[i].gradient_norm, b.steps[i].gradient_norm) << i;
    }
    for (const auto& [name, tensor] : a.state) {
      EXPECT_TRUE(std::ranges::equal(tensor.bytes(), b.state.at(name).bytes())) << name;
    }
  }

  const test::TempDir dir_;
  TrainRules rules_;
};

// Adapters and weights, in one part and in several, on the CPU and recorded on a device.
TEST_F(SummedGradients, HaveTheSameBitsBesideTheBackwardPassAndAfterIt) {
  for (const TrainMode mode : {TrainMode::kLora, TrainMode::kFull}) {
    for (const int64_t accumulate : {1, 3}) {
      for (const bool on_device : {false, true}) {
        SCOPED_TRACE(fmt::format("{} {} {}", to_string(mode), accumulate, on_device));
        rules_.mode = mode;
        rules_.accumulate = accumulate;
        std::vector<Run> runs;
        std::vector<int> sums;
        for (const bool overlap : {false, true}) {
          rules_.overlap = overlap;
          test::FakeDevice device;
          MirroredCollective processes;
          LoadOptions options = on_cpu();
          if (on_device) options.stream.device = &device;
          options.compile = on_device;
          runs.push_back(run(&processes, options));
          sums.push_back(processes.sums);
          if (on_device) {
            EXPECT_GT(device.replays, 0);
            EXPECT_EQ(device.points, processes.sums) << "each behind what was launched";
          }
        }
        expect_same(runs[0], runs[1]);
        EXPECT_EQ(sums[0], sums[1]);
        EXPECT_GE(sums[0], 4 * 8) << "steps of many buckets";
        EXPECT_TRUE(runs[1].steps[0].sums.has_value());
      }
    }
  }
}

// On a GPU, through pinned memory, from parts of a recording.
TEST_F(SummedGradients, HaveTheSameBitsWhereTheseTestsRun) {
  LoadOptions options = test::tested_options();
  if (options.stream.device == nullptr) GTEST_SKIP() << "the CPU, of which the test before is";
  options.compile = true;
  options.stream.device->set_deterministic(true);
  rules_.steps = 6;
  std::vector<Run> runs;
  for (const bool overlap : {false, true}) {
    rules_.overlap = overlap;
    MirroredCollective processes;
    runs.push_back(run(&processes, options));
  }
  options.stream.device->set_deterministic(false);
  expect_same(runs[0], runs[1]);
}

// What the other one adds are the gradients that it has: then the mean is what one alone has.
TEST_F(SummedGradients, OfTwoThatAreAlikeAreThoseOfOne) {
  MirroredCollective processes;
  rules_.batch = 4;
  rules_.clip = 0;
  const auto pipeline = test::load_pipeline(dir_ / "model", on_cpu());
  auto data = examples(*pipeline);
  data.resize(1);
  rules_.steps = 1;
  Trainer together(pipeline->shared_model(), data, rules_, {}, &processes);
  const TrainStep two = together.step();
  Trainer alone(pipeline->shared_model(), data, rules_);
  const TrainStep one = alone.step();
  EXPECT_EQ(two.gradient_norm, one.gradient_norm) << "twice the sum, of twice as many";
}

// A step takes its computing and what it waits for: of sums that take as long as a step computes,
// the most are over when the backward pass is.
TEST_F(SummedGradients, TakeLessThanTheBackwardPassAndTheSumsOneAfterTheOther) {
  HT_SKIP_WHERE_SANITIZED();
  rules_.mode = TrainMode::kFull;
  rules_.batch = 8;
  rules_.bucket = 0;
  const auto pipeline = test::load_pipeline(dir_ / "model", on_cpu());
  const auto data = examples(*pipeline);
  MirroredCollective processes;
  struct Fastest {
    double computing = 1e9, waited_share = 1e9;
  };
  const auto measure = [&](bool overlap) {
    rules_.overlap = overlap;
    rules_.steps = 6;
    Trainer trainer(pipeline->shared_model(), data, rules_, {}, &processes);
    Fastest best;
    while (!trainer.done()) {
      const auto start = std::chrono::steady_clock::now();
      const TrainStep made = trainer.step();
      const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
      best.computing = std::min(best.computing, taken.count() - made.sums->waited);
      best.waited_share = std::min(best.waited_share, made.sums->waited / made.sums->summing);
    }
    return best;
  };
  const double computing = measure(false).computing;
  const int buckets = processes.sums / 6;
  ASSERT_GE(buckets, 4);
  processes.delay = std::chrono::microseconds(static_cast<int64_t>(computing * 1e6 / buckets));
  EXPECT_GT(measure(false).waited_share, 0.9) << "nothing is hidden";
  const double waited_share = measure(true).waited_share;
  EXPECT_LT(waited_share, 0.75);
  std::printf("%.0f ms of computing, as long in %d sums: %.0f%% of these waited for\n",
              1e3 * computing, buckets, 100 * waited_share);
}

// A step that fails leaves no sum behind it, and nothing has changed.
TEST_F(SummedGradients, EndWithTheStep) {
  MirroredCollective processes;
  std::atomic<bool> stops = false;
  const auto pipeline = test::load_pipeline(dir_ / "model", on_cpu());
  Trainer trainer(pipeline->shared_model(), examples(*pipeline), rules_, {}, &processes,
                  [&] { return stops.load(); });
  trainer.step();
  const Tensor before = trainer.state().tensors.at("values").clone();
  processes.on_sum = [&] { stops = true; };
  processes.never = true;
  EXPECT_THAT(test::error_of([&] { trainer.step(); }), testing::HasSubstr("interrupted"));
  EXPECT_TRUE(std::ranges::equal(before.bytes(), trainer.state().tensors.at("values").bytes()));
  EXPECT_EQ(trainer.state().step, 1);
}

}  // namespace
}  // namespace halftone
