#include "halftone/training/objective.h"

#include <gtest/gtest.h>

#include "halftone/graph/ops.h"
#include "halftone/io/safetensors_file.h"
#include "halftone/runtime/program.h"
#include "halftone/training/train_graph.h"
#include "tests/support/backend.h"
#include "tests/support/data.h"
#include "tests/support/run_graph.h"

namespace halftone {
namespace {

using test::floats;

TEST(Objective, SigmasAreLogitNormalAndShifted) {
  SchedulerConfig flow;
  for (const double shift : {1.0, 3.0}) {
    int below = 0;
    double mean = 0;
    constexpr int kDraws = 20000;
    const Objective objective(flow, {0, 1, shift});
    const double median = shift * 0.5 / (1 + (shift - 1) * 0.5);
    for (int i = 0; i < kDraws; ++i) {
      const Noising n = objective.draw({7, static_cast<uint64_t>(i)});
      ASSERT_GT(n.sigma, 0);
      ASSERT_LT(n.sigma, 1);
      EXPECT_FLOAT_EQ(n.latents + n.noise, 1);
      EXPECT_EQ(n.target_latents, -1);
      EXPECT_EQ(n.target_noise, 1);
      EXPECT_EQ(n.weight, 1);
      below += n.sigma < median;
      const double u = n.sigma / (shift - (shift - 1) * n.sigma);  // before the shift
      mean += std::log(u / (1 - u)) / kDraws;
    }
    EXPECT_NEAR(below, kDraws / 2, 300) << "half of them below the shifted median";
    EXPECT_NEAR(mean, 0, 0.03);
  }
  const Objective objective(flow, {});
  EXPECT_EQ(objective.draw({1, 2}).sigma, objective.draw({1, 2}).sigma);
  EXPECT_NE(objective.draw({1, 2}).sigma, objective.draw({1, 3}).sigma);
}

// Every kind says the same of a picture: from noisy and target the clean one follows.
TEST(Objective, TimestepsCoverTrainingAndTargetsAreWhatIsPredicted) {
  for (const Prediction kind : {Prediction::kEpsilon, Prediction::kV, Prediction::kSample}) {
    SchedulerConfig config;
    config.kind = SchedulerKind::kDdim;
    config.prediction = kind;
    const Objective objective(config, {}, 5);
    std::set<int> seen;
    for (uint64_t i = 0; i < 12000; ++i) {
      const Noising n = objective.draw({3, i});
      seen.insert(static_cast<int>(n.timestep));
      ASSERT_NEAR(n.latents * n.latents + n.noise * n.noise, 1, 1e-6);
      const double x = 0.7, e = -1.3, noisy = n.latents * x + n.noise * e;
      const double target = n.target_latents * x + n.target_noise * e;
      double clean = target;
      if (kind == Prediction::kEpsilon) clean = (noisy - n.noise * target) / n.latents;
      if (kind == Prediction::kV) clean = n.latents * noisy - n.noise * target;
      ASSERT_NEAR(clean, x, 2e-4 / n.latents);
      const double snr = std::pow(n.latents / n.noise, 2);
      double weight = std::min(snr, 5.0);  // of the clean picture's error
      if (kind == Prediction::kEpsilon) weight /= snr;
      if (kind == Prediction::kV) weight /= snr + 1;
      ASSERT_NEAR(n.weight, weight, 1e-3 * weight);
    }
    EXPECT_GT(seen.size(), 990u);
    EXPECT_EQ(*seen.begin(), 0);
    EXPECT_EQ(*seen.rbegin(), 999);
  }
}

// What PyTorch and diffusers' scheduler make of each timestep, with its weight by min-SNR.
TEST(Objective, TimestepsAreTaughtAsInPyTorch) {
  const SafetensorsFile fixture(test::kData / "sdxl" / "objectives.safetensors");
  SchedulerConfig config;
  config.kind = SchedulerKind::kDdim;
  config.beta_start = 0.00085;
  config.beta_end = 0.012;
  config.betas = BetaSchedule::kScaledLinear;
  for (const auto& [kind, name] :
       {std::pair{Prediction::kEpsilon, "epsilon"}, std::pair{Prediction::kV, "v_prediction"}}) {
    config.prediction = kind;
    const Objective weighed(config, {}, 5), plain(config, {});
    const auto rows = floats(fixture.tensor(name));  // [1000, 5]
    std::set<int> seen;
    for (uint64_t i = 0; i < 12000; ++i) {
      const Noising n = weighed.draw({5, i});
      EXPECT_EQ(plain.draw({5, i}).weight, 1);
      const auto t = static_cast<size_t>(n.timestep);
      seen.insert(static_cast<int>(t));
      const float found[] = {n.latents, n.noise, n.target_latents, n.target_noise, n.weight};
      for (size_t k = 0; k < 5; ++k) {
        const float expected = rows[5 * t + k];
        ASSERT_NEAR(found[k], expected, 2e-5 * (std::abs(expected) + 0.01)) << t << " " << k;
      }
    }
    EXPECT_GT(seen.size(), 990u);
  }
}

// Noise that the graph draws is noise that it is given.
TEST(Objective, NoisingInTheGraphIsNoisingBeforeIt) {
  const Shape shape{2, 3, 4, 6};
  Graph graph;
  const Value latents = graph.input("latents", {shape, DType::kF32, {}});
  graph.output("sample", tanh(latents));
  const auto noised = add_noising(graph);
  noised->output("noisy", noised->outputs().at("sample"));
  add_loss(*noised, {});
  const Tensor clean = test::random_tensor(shape, 4);
  const Tensor keys = test::int_tensor({1, 0, 2, 0, 3, 0, 4, 0}, {2, 4});
  const Tensor factors = test::f32_tensor({2, 4}, {0.25f, 0.75f, -1, 1, 0.6f, 0.8f, -0.8f, 0.6f});
  const Tensor weights = test::f32_tensor({2}, {1, 0.5f});
  auto program = test::tested_program(noised, {});
  const auto result = program.run(
      {{"latents", clean}, {"noise_keys", keys}, {"noising", factors}, {"loss_weight", weights}});
  const auto noise = floats(test::run_op(
      [&](std::span<const Value> v) { return gaussian(v[0], shape); }, {keys}, cpu_kernels()));
  const auto x = floats(clean), f = floats(factors);
  double loss = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const size_t row = i / (x.size() / 2);
    const float noisy = f[4 * row] * x[i] + f[4 * row + 1] * noise[i];
    const float target = f[4 * row + 2] * x[i] + f[4 * row + 3] * noise[i];
    EXPECT_NEAR(floats(result.at("noisy"))[i], std::tanh(noisy), 1e-6);
    EXPECT_NEAR(floats(result.at("target"))[i], target, 1e-6);
    loss += std::pow(std::tanh(noisy) - target, 2) * (row == 0 ? 1 : 0.5);
  }
  EXPECT_NEAR(floats(result.at("loss"))[0], loss / static_cast<double>(x.size()), 1e-5);
}

}  // namespace
}  // namespace halftone
