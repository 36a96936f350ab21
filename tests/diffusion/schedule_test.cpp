// What holds of every schedule: it is finite for any number of steps, a network that knows the
// answer arrives at it, fresh noise replaces as much as was taken away, and no two are the same.
#include "halftone/diffusion/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "halftone/diffusion/scheduler.h"
#include "tests/support/errors.h"
#include "tests/support/tensors.h"

namespace halftone {
namespace {

using test::error_of;
using testing::HasSubstr;

SchedulerConfig stable_diffusion(Prediction prediction) {
  SchedulerConfig c;
  c.kind = SchedulerKind::kEuler;
  c.prediction = prediction;
  c.betas = BetaSchedule::kScaledLinear;
  c.beta_start = 0.00085;
  c.beta_end = 0.012;
  return c;
}

SchedulerConfig flow(double shift) {
  SchedulerConfig c;
  c.flow.shift = shift;
  return c;
}

struct Case {
  std::string name;
  SchedulerConfig config;
};

// Every choice for every kind of prediction, with what changes the levels.
std::vector<Case> cases() {
  std::vector<Case> all;
  const auto add = [&](const std::string& name, const SchedulerConfig& own) {
    for (const SchedulerChoice& choice : scheduler_choices()) {
      const bool is_flow = own.prediction == Prediction::kVelocity;
      if (is_flow ? !choice.flow : !choice.diffusion) continue;
      all.push_back({name + " " + std::string(choice.name), with_scheduler(own, choice.name)});
    }
  };
  for (const double shift : {0.3, 1.0, 3.0, 1000.0}) add("flow", flow(shift));
  SchedulerConfig qwen = flow(1);
  qwen.flow.dynamic_shifting = true;
  qwen.flow.shift_terminal = 0.02;
  add("terminal", qwen);
  for (const auto prediction : {Prediction::kEpsilon, Prediction::kV, Prediction::kSample}) {
    SchedulerConfig c = stable_diffusion(prediction);
    add("default", c);
    for (const auto spacing : {TimestepSpacing::kLeading, TimestepSpacing::kTrailing}) {
      c.timestep_spacing = spacing;
      c.steps_offset = 1;
      add("spacing", c);
    }
    if (prediction != Prediction::kEpsilon) {
      c.zero_terminal_snr = true;
      add("no terminal signal", c);
    }
    c = stable_diffusion(prediction);
    c.betas = BetaSchedule::kCosine;
    c.solver_order = 3;
    c.lower_order_final = false;
    add("cosine", c);
    c.bh1 = c.heun = true;
    c.final_sigma_zero = false;
    c.sigma_spacing = SigmaSpacing::kExponential;
    add("exponential", c);
    all.push_back({"third order", c});
    all.back().config.kind = SchedulerKind::kDpmSolver;
  }
  return all;
}

double sum(const std::vector<double>& parts) {
  double total = 0;
  for (const double part : parts) total += part;
  return total;
}

// What a network says that knows the clean picture.
double exact_prediction(Prediction prediction, const SamplerStep& step, double clean,
                        double noise) {
  const double alpha = 1 / std::sqrt(1 + step.sigma * step.sigma);
  switch (prediction) {
    case Prediction::kVelocity:
      return noise - clean;
    case Prediction::kEpsilon:
      return noise;
    case Prediction::kV:
      return alpha * noise - step.sigma * alpha * clean;
    case Prediction::kSample:
      break;
  }
  return clean;
}

TEST(ApplyStep, FlowMatchEulerHasTheBitsOfItsStep) {
  for (const int steps : {1, 2, 8, 50}) {
    const FlowMatchConfig config = flow(3).flow;
    const Schedule schedule = make_schedule(flow(3), steps, 0);
    const std::vector<float> sigmas = flow_match_sigmas(config, steps, 0);
    std::vector<float> latents = test::gaussians(1, 1000), expected = latents;
    for (int i = 0; i < steps; ++i) {
      const std::vector<float> velocity = test::gaussians(2 + static_cast<uint64_t>(i), 1000);
      EXPECT_EQ(schedule.steps[i].sigma, double{sigmas[i]});
      apply_step(schedule.steps[i], {latents, velocity, {}, {}});
      euler_step(expected, velocity, sigmas[i], sigmas[i + 1]);
      ASSERT_EQ(latents, expected) << steps << " " << i;
    }
  }
}

TEST(ApplyStep, ReadsWhatItsFactorsNameAndWritesEverythingAtOnce) {
  SamplerStep step;
  step.latents = {0, 2, 0, 3, 0};
  step.memory = {{1, 0, 0, 0, 0}, {0, 0, 0, 1, 0}};
  const float nan = std::nanf("");
  std::vector<float> latents = {5, 6}, first = {10, 20}, second = {nan, nan};
  const std::vector<float> prediction = {1, -1};
  const std::vector<std::span<float>> memories = {first, second};
  apply_step(step, {latents, prediction, {}, memories});
  EXPECT_THAT(latents, testing::ElementsAre(32, 58));
  EXPECT_THAT(first, testing::ElementsAre(5, 6));
  EXPECT_THAT(second, testing::ElementsAre(10, 20));
  step.latents = {0, 0, 0, 0, 0};
  apply_step(step, {latents, prediction, {}, memories});
  EXPECT_THAT(latents, testing::ElementsAre(0, 0));
}

TEST(Schedules, AreFiniteForAnyNumberOfSteps) {
  std::vector<int> counts = {99, 100, 333, 499, 500, 501, 750, 998, 999, 1000};
  for (int steps = 1; steps <= 40; ++steps) counts.push_back(steps);
  for (const Case& c : cases()) {
    for (const int steps : counts) {
      Schedule schedule;  // make_schedule looks at every factor
      EXPECT_EQ(error_of([&] { schedule = make_schedule(c.config, steps, 1024); }), "(no error)")
          << c.name << " " << steps;
      ASSERT_EQ(schedule.steps.size(), static_cast<size_t>(steps)) << c.name;
      for (size_t i = 1; i < schedule.steps.size(); ++i) {
        ASSERT_LE(schedule.steps[i].sigma, schedule.steps[i - 1].sigma) << c.name << " " << steps;
      }
    }
  }
}

// Latents stay on the way from the noise to the picture; previews show it at once.
TEST(Schedules, ANetworkThatKnowsThePictureArrivesAtIt) {
  int arrived = 0;
  for (const Case& c : cases()) {
    if (c.config.kind == SchedulerKind::kDdim && !c.config.timestep_spacing) continue;
    for (const int steps : {1, 2, 5, 20, 125}) {
      const Schedule schedule = make_schedule(c.config, steps, 1024);
      if (schedule.uses_noise()) continue;
      // Under 20,000 times as much noise a float holds no picture.
      const bool hidden = schedule.steps[0].sigma > 1e4;
      if (hidden && c.config.prediction == Prediction::kEpsilon) continue;
      const std::vector<float> clean = {1, 0, 0.7f, -0.2f}, noise = {0, 1, -0.4f, 2};
      std::vector<float> latents(4), prediction(4), preview(4);
      std::vector<std::vector<float>> memories(schedule.memories, std::vector<float>(4));
      const std::vector<std::span<float>> spans(memories.begin(), memories.end());
      const SamplerState state{latents, prediction, {}, spans};
      for (size_t i = 0; i < 4; ++i) {
        latents[i] = schedule.steps[0].signal * clean[i] + schedule.steps[0].noise_level * noise[i];
      }
      double left = 0;  // what floats leave over of noise that is taken out
      for (size_t k = 0; k < schedule.steps.size(); ++k) {
        const SamplerStep& step = schedule.steps[k];
        const double scale = std::max(1.0, step.sigma);
        for (size_t i = 0; i < 4; ++i) {
          const double expected = sum({step.signal * clean[i], step.noise_level * noise[i]});
          ASSERT_NEAR(latents[i], expected, 3e-5 * scale + left)
              << c.name << " " << steps << " " << k;
          prediction[i] =
              static_cast<float>(exact_prediction(c.config.prediction, step, clean[i], noise[i]));
        }
        combine(step.clean, state, preview);
        for (size_t i = 0; i < 4; ++i) {
          ASSERT_NEAR(preview[i], clean[i], (2e-4 * scale + left) / step.signal)
              << c.name << " " << k;
        }
        apply_step(step, state);
        left += 8 * 0x1p-24 * step.sigma;
      }
      if (!c.config.final_sigma_zero) continue;
      for (size_t i = 0; i < 4; ++i)
        ASSERT_NEAR(latents[i], clean[i], 5e-5 + left) << c.name << steps;
      ++arrived;
    }
  }
  EXPECT_GT(arrived, 150);
}

// Where the network is right, what fresh noise replaces was as large as it is.
TEST(Schedules, FreshNoiseKeepsTheVariance) {
  std::vector<Case> all = cases();
  for (Case& c : all) {
    if (c.config.kind == SchedulerKind::kDdim) c.config.eta = 0.6;
    if (c.config.kind == SchedulerKind::kDdim && !c.config.timestep_spacing) {
      c.config.timestep_spacing = TimestepSpacing::kLeading;
    }
    if (c.config.kind == SchedulerKind::kFlowMatchEuler) c.config.stochastic = true;
  }
  int checked = 0;
  for (const Case& c : all) {
    for (const int steps : {2, 10, 50}) {
      const Schedule schedule = make_schedule(c.config, steps, 1024);
      if (!schedule.uses_noise()) continue;
      for (size_t k = 0; k + 1 < schedule.steps.size(); ++k) {
        const SamplerStep &step = schedule.steps[k], &next = schedule.steps[k + 1];
        // Clean is 0 and noise 1: what the remembered pictures were as well.
        const double prediction = exact_prediction(c.config.prediction, step, 0, 1);
        const double kept = sum(
            {step.latents[kLatents] * step.noise_level, step.latents[kPrediction] * prediction});
        const double variance = std::pow(kept, 2) + std::pow(step.latents[kNoise], 2);
        const double wanted = std::pow(next.noise_level, 2);
        ASSERT_NEAR(variance / wanted, 1, 1e-3) << c.name << " " << steps << " " << k;
        ++checked;
      }
    }
  }
  EXPECT_GT(checked, 500);
}

TEST(Schedules, NoTwoChoicesAreTheSame) {
  for (const bool is_flow : {false, true}) {
    const SchedulerConfig own = is_flow ? flow(3) : stable_diffusion(Prediction::kEpsilon);
    std::vector<std::vector<float>> results;
    for (const SchedulerChoice& choice : scheduler_choices()) {
      if (is_flow ? !choice.flow : !choice.diffusion) continue;
      const Schedule schedule = make_schedule(with_scheduler(own, choice.name), 10, 0);
      std::vector<float> latents = {1, -0.5f}, prediction(2);
      for (float& x : latents) x *= schedule.initial_scale;
      std::vector<std::vector<float>> memories(schedule.memories, std::vector<float>(2));
      const std::vector<std::span<float>> spans(memories.begin(), memories.end());
      const std::vector<float> fresh = {0.3f, 0.8f};
      for (const SamplerStep& step : schedule.steps) {
        for (size_t i = 0; i < 2; ++i) {
          prediction[i] =
              std::tanh(latents[i] * step.input_scale + static_cast<float>(step.timestep) / 1000);
        }
        apply_step(step, {latents, prediction, fresh, spans});
      }
      for (const auto& other : results) {
        EXPECT_GT(std::abs(latents[0] - other[0]) + std::abs(latents[1] - other[1]), 1e-3)
            << choice.name;
      }
      results.push_back(latents);
    }
    EXPECT_EQ(results.size(), is_flow ? 4u : 7u);
  }
}

TEST(Schedules, ErrorsNameTheField) {
  const auto error = [](const SchedulerConfig& c, int steps) {
    return error_of([&] { make_schedule(c, steps, 0); });
  };
  for (const int steps : {0, -1, 1001}) {
    EXPECT_EQ(error(flow(1), steps), fmt::format("steps: {} is not in 1 .. 1000", steps));
  }
  SchedulerConfig ddim = with_scheduler(stable_diffusion(Prediction::kEpsilon), "ddim");
  ddim.timestep_spacing = TimestepSpacing::kTrailing;
  ddim.zero_terminal_snr = true;
  EXPECT_THAT(error(ddim, 4), HasSubstr("scheduler: DDIM finds no picture"));
  ddim.prediction = Prediction::kV;
  EXPECT_EQ(error(ddim, 4), "(no error)");
  ddim.eta = 2;
  EXPECT_EQ(error(ddim, 4), "scheduler: 'eta' is not in 0 .. 1");
  ddim.eta = 0;
  ddim.clip_sample = true;
  EXPECT_EQ(error(ddim, 4), "scheduler: 'clip_sample' is true, and only false is supported");
  SchedulerConfig sde = with_scheduler(stable_diffusion(Prediction::kEpsilon), "dpm++-2m-sde");
  sde.solver_order = 3;
  EXPECT_EQ(error(sde, 4), "scheduler: 'solver_order' is 3, and sde-dpmsolver++ has 1 and 2 alone");
  SchedulerConfig velocity = flow(1);
  velocity.kind = SchedulerKind::kEuler;
  EXPECT_THAT(error(velocity, 4), HasSubstr("scheduler: Euler is for networks"));
}

}  // namespace
}  // namespace halftone
