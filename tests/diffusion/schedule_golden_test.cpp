// Whole runs of every scheduler against diffusers, over a network that is a formula; and numbers
// that are known of the schedules of published models.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "halftone/diffusion/noise_table.h"
#include "halftone/diffusion/scheduler.h"
#include "halftone/io/json.h"
#include "halftone/io/safetensors_file.h"
#include "tests/support/procedural.h"

namespace halftone {
namespace {

using nlohmann::json;

constexpr size_t kCount = 24;
const std::filesystem::path kData = std::filesystem::path(HALFTONE_TEST_DATA) / "schedulers";

std::vector<float> noise(const std::string& name) {
  const Tensor t = test::procedural_uniform(name, {1, 2, 3, 4}, std::sqrt(3.0f));
  return {t.as<float>().begin(), t.as<float>().end()};
}

// The twin of the one in tools/golden/schedulers.py.
float network(float x, double t, size_t i) {
  const auto n = static_cast<double>(i);
  return static_cast<float>(1.5 * std::tanh((0.5 + 0.03 * n) * double{x} + 0.8 * t / 1000 +
                                            0.1 * static_cast<double>(i % 5) - 0.2));
}

// Latents after each step. Memories start as NaN: nobody may read them before they are written.
std::vector<std::vector<float>> run(const Schedule& schedule) {
  std::vector<float> latents = noise("noise"), prediction(kCount);
  for (float& x : latents) x *= schedule.initial_scale;
  std::vector<std::vector<float>> memories(schedule.memories,
                                           std::vector<float>(kCount, std::nanf("")));
  const std::vector<std::span<float>> spans(memories.begin(), memories.end());
  std::vector<std::vector<float>> trajectory;
  for (size_t k = 0; k < schedule.steps.size(); ++k) {
    const SamplerStep& step = schedule.steps[k];
    for (size_t i = 0; i < kCount; ++i) {
      prediction[i] = network(latents[i] * step.input_scale, step.timestep, i);
    }
    const std::vector<float> fresh =
        step.uses_noise() ? noise("noise." + std::to_string(k)) : std::vector<float>();
    apply_step(step, {latents, prediction, fresh, spans});
    trajectory.push_back(latents);
  }
  return trajectory;
}

SchedulerConfig config_of(const json& golden) {
  SchedulerConfig config = parse_scheduler_config(golden["config"], "fixture");
  config.eta = golden.value("eta", 0.0);
  if (golden.value("mu_rule", "") == "flux2") config.flow.mu_rule = MuRule::kFlux2;
  if (golden.value("spacing", "") == "trained") config.flow.spacing = FlowSpacing::kTrained;
  return config;
}

struct Differences {
  double sigma = 0, timestep = 0, latents = 0;  // the last over the largest value of the run

  void join(const Differences& other) {
    sigma = std::max(sigma, other.sigma);
    timestep = std::max(timestep, other.timestep);
    latents = std::max(latents, other.latents);
  }
};

Differences compare(const Schedule& schedule, const Tensor& golden) {
  Differences d;
  const auto rows = golden.as<float>();
  const auto trajectory = run(schedule);
  double largest = 0, error = 0;
  for (size_t k = 0; k < trajectory.size(); ++k) {
    const auto row = rows.subspan(k * (2 + kCount), 2 + kCount);
    d.sigma = std::max(d.sigma, std::abs(schedule.steps[k].sigma / double{row[0]} - 1));
    d.timestep = std::max(d.timestep, std::abs(schedule.steps[k].timestep - double{row[1]}));
    for (size_t i = 0; i < kCount; ++i) {
      largest = std::max(largest, std::abs(double{row[2 + i]}));
      error = std::max(error, std::abs(double{trajectory[k][i]} - double{row[2 + i]}));
      if (!std::isfinite(trajectory[k][i])) error = INFINITY;
    }
  }
  // Where the first latents are 4096 times the noise, diffusers cannot step from them by less than
  // what a float of that size resolves.
  error -= double{schedule.initial_scale} * 2 * 0x1p-24;
  d.latents = std::max(0.0, error / largest);
  return d;
}

// The same run on latents that the network reads as they are.
void expect_same_as_read(const Schedule& schedule) {
  const Schedule read = as_read(schedule);
  const auto expected = run(schedule), found = run(read);
  for (size_t k = 0; k < expected.size(); ++k) {
    EXPECT_EQ(read.steps[k].input_scale, 1);
    const bool last = k + 1 == expected.size();
    const double scale = last ? 1 : schedule.steps[k + 1].input_scale;
    double largest = 0, error = 0;
    for (size_t i = 0; i < kCount; ++i) {
      largest = std::max(largest, std::abs(expected[k][i] * scale));
      error = std::max(error, std::abs(found[k][i] - expected[k][i] * scale));
    }
    EXPECT_LE(error, 2e-5 * largest) << k;
  }
}

class Golden : public testing::TestWithParam<const char*> {};

TEST_P(Golden, WholeRuns) {
  const SafetensorsFile file(kData / (std::string(GetParam()) + ".safetensors"));
  const json cases = parse_json(file.metadata().at("cases"), "fixture");
  ASSERT_GE(cases.size(), 20u);
  Differences worst;
  for (size_t i = 0; i < cases.size(); ++i) {
    const json& golden = cases[i];
    const Schedule schedule =
        make_schedule(config_of(golden), golden["steps"], golden.value("tokens", 0));
    EXPECT_NEAR(schedule.initial_scale / golden["initial_scale"].get<double>(), 1, 1e-6) << golden;
    const Differences d = compare(schedule, file.tensor(std::to_string(i)));
    expect_same_as_read(schedule);
    EXPECT_LE(d.sigma, 2e-6) << golden;
    EXPECT_LE(d.timestep, 1e-3) << golden;
    EXPECT_LE(d.latents, 1e-5) << golden;
    worst.join(d);
  }
  for (const auto& [name, value] : {std::pair("sigma", worst.sigma),
                                    {"timestep", worst.timestep},
                                    {"latents", worst.latents}}) {
    RecordProperty(name, fmt::format("{:.1e}", value));
  }
}

INSTANTIATE_TEST_SUITE_P(Schedulers, Golden,
                         testing::Values("FlowMatchEulerDiscreteScheduler",
                                         "EulerDiscreteScheduler",
                                         "EulerAncestralDiscreteScheduler", "DDIMScheduler",
                                         "DPMSolverMultistepScheduler", "UniPCMultistepScheduler"),
                         [](const auto& which) { return std::string(which.param); });

// ---- where steps lie ----------------------------------------------------------------------------

TEST(Timesteps, EveryNumberOfSteps) {
  const SafetensorsFile file(kData / "timesteps.safetensors");
  const Tensor tensor = file.tensor("sums");
  const auto sums = tensor.as<float>();
  size_t row = 0;
  for (const bool multistep : {false, true}) {
    for (const auto spacing :
         {TimestepSpacing::kLeading, TimestepSpacing::kTrailing, TimestepSpacing::kLinspace}) {
      for (int steps = 1; steps <= 1000; ++steps) {
        const auto timesteps = multistep ? multistep_timesteps(spacing, steps, 1)
                                         : single_step_timesteps(spacing, steps, 0);
        int64_t sum = 0;
        for (int i = 0; i < steps; ++i) {
          sum += static_cast<int64_t>(std::rint(timesteps[i])) * (i + 1);
        }
        // There diffusers puts every step at the same timestep.
        if (multistep && spacing == TimestepSpacing::kLeading && steps == 1000) continue;
        ASSERT_EQ(sum % 65521, static_cast<int64_t>(sums[row * 1000 + steps - 1]))
            << row << " " << steps;
      }
      ++row;
    }
  }
}

TEST(Timesteps, InverseBetaAgainstTables) {
  // From mpmath, 20 digits.
  EXPECT_EQ(inverse_beta(0), 0);
  EXPECT_EQ(inverse_beta(1), 1);
  EXPECT_NEAR(inverse_beta(0.5), 0.5, 1e-15);
  EXPECT_NEAR(inverse_beta(0.25), 0.1756803786526950145, 1e-14);
  EXPECT_NEAR(inverse_beta(0.001) / 0.000018558738517451996499, 1, 1e-12);
  EXPECT_NEAR(inverse_beta(0.9), 0.96041559441121915191, 1e-14);
}

struct Known {
  const char* name;
  json config;
  int steps;
  int64_t tokens;
  // The first and the last sigmas, and timesteps.
  std::vector<double> first, last, timesteps;
  double sigma_tolerance = 1e-6;
};

void expect_known(const Known& known, const SchedulerConfig& config) {
  const Schedule schedule = make_schedule(config, known.steps, known.tokens);
  const size_t n = schedule.steps.size();
  for (size_t i = 0; i < known.first.size(); ++i) {
    EXPECT_NEAR(schedule.steps[i].sigma, known.first[i], known.sigma_tolerance) << known.name;
  }
  for (size_t i = 0; i < known.last.size(); ++i) {
    const size_t at = n - known.last.size() + i;
    EXPECT_NEAR(schedule.steps[at].sigma, known.last[i], known.sigma_tolerance) << known.name;
  }
  for (size_t i = 0; i < known.timesteps.size(); ++i) {
    EXPECT_EQ(schedule.steps[i].timestep, known.timesteps[i]) << known.name;
  }
}

// Numbers that were written down of the schedules of published models.
TEST(KnownSchedules, Flow) {
  const char* flow_match = "FlowMatchEulerDiscreteScheduler";
  const json dynamic = {{"_class_name", flow_match}, {"use_dynamic_shifting", true}};
  const auto parsed = [](const json& c) { return parse_scheduler_config(c, "known"); };
  const Known dev{"FLUX.1-dev", dynamic, 28, 4096, {1, .988409, .976222, .963394}, {.104721}, {}};
  expect_known(dev, parsed(dev.config));
  const Known schnell{
      "FLUX.1-schnell", {{"_class_name", flow_match}}, 4, 4096, {1, .75, .5, .25}, {}, {}};
  expect_known(schnell, parsed(schnell.config));

  SchedulerConfig klein = parsed(dynamic);
  klein.flow.mu_rule = MuRule::kFlux2;
  expect_known({"FLUX.2", {}, 4, 4096, {1, .967384, .908144, .767200}, {}, {}}, klein);
  expect_known({"FLUX.2", {}, 50, 4096, {1, .997309, .994521, .991632}, {.133719}, {}}, klein);

  SchedulerConfig sd3 = parsed({{"_class_name", flow_match}, {"shift", 3.0}});
  sd3.flow.spacing = FlowSpacing::kTrained;
  expect_known({"SD3", {}, 28, 4096, {1, .987381, .974108}, {.008929}, {}}, sd3);

  SchedulerConfig audio = parsed({{"_class_name", flow_match}, {"num_train_timesteps", 1}});
  audio.flow.spacing = FlowSpacing::kLogistic;
  expect_known({"Stable Audio",
                {},
                8,
                0,
                {1, .9944, .9845, .9579, .8909, .7455, .5125, .2739},
                {},
                {1},
                1e-4},
               audio);

  const Known wan{"Wan",
                  {{"_class_name", "UniPCMultistepScheduler"},
                   {"prediction_type", "flow_prediction"},
                   {"use_flow_sigmas", true},
                   {"flow_shift", 3.0}},
                  50,
                  0,
                  {.999999, .9932501, .9863154, .9791884},
                  {.0604054},
                  {999, 993, 986, 979, 971}};
  expect_known(wan, parsed(wan.config));
}

TEST(KnownSchedules, StableDiffusionXl) {
  const auto sdxl = [](const char* kind, bool karras) {
    return parse_scheduler_config({{"_class_name", kind},
                                   {"beta_start", 0.00085},
                                   {"beta_end", 0.012},
                                   {"beta_schedule", "scaled_linear"},
                                   {"timestep_spacing", "leading"},
                                   {"steps_offset", 1},
                                   {"use_karras_sigmas", karras}},
                                  "known");
  };
  const SchedulerConfig euler = sdxl("EulerDiscreteScheduler", false);
  expect_known({"Euler", {}, 30, 0, {11.47685, 9.54359, 8.00431}, {.041314}, {958, 925, 892}, 1e-5},
               euler);
  EXPECT_NEAR(make_schedule(euler, 30, 0).initial_scale, 11.520334, 1e-5);
  const char* solver = "DPMSolverMultistepScheduler";
  expect_known({"DPM++", {}, 30, 0, {11.67605, 9.75484, 8.21609}, {.179259}, {961, 929, 897}, 1e-5},
               sdxl(solver, false));
  expect_known(
      {"DPM++ Karras", {}, 30, 0, {14.61465, 12.66061, 10.93493}, {.029168}, {999, 975, 949}, 1e-5},
      sdxl(solver, true));
}

}  // namespace
}  // namespace halftone
