// Configs of schedulers: those in the wild load, nothing in one is passed over, and what a user
// chooses instead means what it would mean in diffusers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <map>

#include "halftone/diffusion/scheduler.h"
#include "halftone/io/json.h"
#include "tests/support/errors.h"
#include "tests/support/tensors.h"

namespace halftone {
namespace {

using nlohmann::json;
using test::error_of;
using testing::HasSubstr;

const std::string kFile = "scheduler_config.json";

// As they lie on the Hub.
const json kSdxl = json::parse(R"({
  "_class_name": "EulerDiscreteScheduler", "_diffusers_version": "0.19.0.dev0", "beta_end": 0.012,
  "beta_schedule": "scaled_linear", "beta_start": 0.00085, "clip_sample": false,
  "interpolation_type": "linear", "num_train_timesteps": 1000, "prediction_type": "epsilon",
  "sample_max_value": 1.0, "set_alpha_to_one": false, "skip_prk_steps": true, "steps_offset": 1,
  "timestep_spacing": "leading", "trained_betas": null, "use_karras_sigmas": false})");
const json kWan = json::parse(R"({
  "_class_name": "UniPCMultistepScheduler", "_diffusers_version": "0.33.0.dev0", "beta_end": 0.02,
  "beta_schedule": "linear", "beta_start": 0.0001, "disable_corrector": [],
  "dynamic_thresholding_ratio": 0.995, "final_sigmas_type": "zero", "flow_shift": 3.0,
  "lower_order_final": true, "num_train_timesteps": 1000, "predict_x0": true,
  "prediction_type": "flow_prediction", "rescale_betas_zero_snr": false, "sample_max_value": 1.0,
  "solver_order": 2, "solver_p": null, "solver_type": "bh2", "steps_offset": 0,
  "thresholding": false, "timestep_spacing": "linspace", "trained_betas": null,
  "use_beta_sigmas": false, "use_exponential_sigmas": false, "use_flow_sigmas": true,
  "use_karras_sigmas": false})");
const json kQwenImage = json::parse(R"({
  "_class_name": "FlowMatchEulerDiscreteScheduler", "_diffusers_version": "0.34.0.dev0",
  "base_image_seq_len": 256, "base_shift": 0.5, "invert_sigmas": false, "max_image_seq_len": 8192,
  "max_shift": 0.9, "num_train_timesteps": 1000, "shift": 1.0, "shift_terminal": 0.02,
  "stochastic_sampling": false, "time_shift_type": "exponential", "use_beta_sigmas": false,
  "use_dynamic_shifting": true, "use_exponential_sigmas": false, "use_karras_sigmas": false})");

// Every class with every field it has, as it writes them; of DDIM's, what is supported.
std::vector<json> full_configs() {
  json configs =
      read_json_file(std::filesystem::path(HALFTONE_TEST_DATA) / "schedulers/configs.json");
  for (json& config : configs) {
    if (config["_class_name"] == "DDIMScheduler") config["clip_sample"] = false;
  }
  return configs.get<std::vector<json>>();
}

SchedulerConfig parse(const json& config) { return parse_scheduler_config(config, kFile); }
std::string error_for(const json& config) {
  return error_of([&] {
    const SchedulerConfig parsed = parse(config);
    for (const int steps : {2, 50}) make_schedule(parsed, steps, 4096);
  });
}
std::string error_for(json config, const char* field, const json& value) {
  config[field] = value;
  return error_for(config);
}

TEST(SchedulerConfigs, ThoseOnTheHubLoad) {
  for (const json& config : {kSdxl, kWan, kQwenImage}) EXPECT_EQ(error_for(config), "(no error)");
  const SchedulerConfig sdxl = parse(kSdxl);
  EXPECT_EQ(sdxl.kind, SchedulerKind::kEuler);
  EXPECT_EQ(sdxl.prediction, Prediction::kEpsilon);
  EXPECT_EQ(sdxl.timestep_spacing, TimestepSpacing::kLeading);
  EXPECT_EQ(sdxl.beta_end, 0.012);
  EXPECT_FALSE(sdxl.set_alpha_to_one);
  const SchedulerConfig wan = parse(kWan);
  EXPECT_EQ(wan.prediction, Prediction::kVelocity);
  EXPECT_EQ(wan.flow.shift, 3);
  EXPECT_EQ(parse(kQwenImage).flow.shift_terminal, 0.02);
}

TEST(SchedulerConfigs, EveryClassLoadsWithAllOfItsFieldsAndWithNone) {
  const auto configs = full_configs();
  ASSERT_EQ(configs.size(), 6u);
  for (const json& config : configs) {
    EXPECT_EQ(error_for(config), "(no error)") << config;
    json bare = {{"_class_name", config["_class_name"]}};
    if (config.contains("clip_sample")) bare["clip_sample"] = false;
    ASSERT_EQ(error_for(bare), "(no error)") << bare;
    // Fields that are missing take the class's defaults.
    const Schedule full = make_schedule(parse(config), 7, 0);
    const Schedule less = make_schedule(parse(bare), 7, 0);
    for (size_t i = 0; i < 7; ++i) {
      EXPECT_EQ(full.steps[i].sigma, less.steps[i].sigma) << bare;
      EXPECT_EQ(full.steps[i].latents, less.steps[i].latents) << bare;
    }
  }
}

// Each field at each extreme: it works, or one short line names it.
TEST(SchedulerConfigs, EveryFieldAtItsExtremes) {
  std::vector<json> values = {std::nan(""), -INFINITY, INFINITY, std::vector<int>(10000, 1),
                              std::string(10000, 'x')};
  for (const char* text : {"0",
                           "-1",
                           "1",
                           "3",
                           "1e-300",
                           "-1e-300",
                           "1e300",
                           "-1e300",
                           "1e-46",
                           "1e38",
                           "2.5",
                           "0.99",
                           "999",
                           "1000",
                           "2147483648",
                           "9223372036854775807",
                           "-9223372036854775808",
                           "18446744073709551615",
                           "true",
                           "false",
                           R"("")",
                           R"("text")",
                           R"("a\u0000\nb")",
                           "{}",
                           "[]",
                           "[0]",
                           "[1e300]",
                           R"({"a":1})"}) {
    values.push_back(json::parse(text));
  }
  std::vector<json> configs = full_configs();
  configs.insert(configs.end(), {kSdxl, kWan, kQwenImage});
  int worked = 0, refused = 0;
  for (const json& config : configs) {
    for (const auto& [field, usual] : config.items()) {
      for (const json& value : values) {
        const std::string error = error_for(config, field.c_str(), value);
        const bool fine = error == "(no error)";
        // Where fields are in range and do not go together, the schedule tells.
        EXPECT_TRUE(fine || error.find("'" + field + "'") != std::string::npos ||
                    (error.starts_with("scheduler: ") && error.find(field) != std::string::npos))
            << config["_class_name"] << " " << field << ": " << error;
        EXPECT_LT(error.size(), 300u) << field;
        (fine ? worked : refused)++;
      }
    }
  }
  EXPECT_GT(refused, 3000);
  EXPECT_GT(worked, 500);
}

// Several fields at once, in range and out of it: a schedule of finite factors, or an Error.
TEST(SchedulerConfigs, FieldsTogether) {
  const std::map<std::string, std::vector<json>> values = {
      {"beta_start", {1e-7, 0.001, 0.5}},
      {"beta_end", {1e-7, 0.05, 0.999}},
      {"beta_schedule", {"linear", "scaled_linear", "squaredcos_cap_v2"}},
      {"rescale_betas_zero_snr", {true}},
      {"prediction_type", {"epsilon", "v_prediction", "sample", "flow_prediction"}},
      {"timestep_spacing", {"leading", "trailing", "linspace"}},
      {"steps_offset", {0, 1, 999}},
      {"use_karras_sigmas", {true}},
      {"use_beta_sigmas", {true}},
      {"use_flow_sigmas", {true}},
      {"flow_shift", {1e-3, 5, 1e3}},
      {"shift", {1e-3, 5, 1e3}},
      {"use_dynamic_shifting", {true}},
      {"time_shift_type", {"linear", "exponential"}},
      {"base_shift", {-100, 100}},
      {"max_shift", {-100, 100}},
      {"shift_terminal", {1e-9, 0.99}},
      {"sigma_min", {1e-6, 1e6}},
      {"sigma_max", {1e-6, 1e6}},
      {"lambda_min_clipped", {-5.1, 3, 100}},
      {"final_sigmas_type", {"sigma_min"}},
      {"solver_order", {1, 3}},
      {"lower_order_final", {false}},
      {"algorithm_type", {"sde-dpmsolver++"}},
      {"solver_type", {"heun", "bh1"}},
      {"stochastic_sampling", {true}},
  };
  const auto configs = full_configs();
  int worked = 0;
  for (uint64_t i = 0; i < 4000; ++i) {
    auto draw = [&, n = uint64_t{0}](size_t below) mutable {
      return static_cast<size_t>(test::uniform(i, n++) * static_cast<double>(below));
    };
    json config = {{"_class_name", configs[draw(configs.size())]["_class_name"]},
                   {"clip_sample", false}};
    for (size_t k = 1 + draw(5); k > 0; --k) {
      const auto& [field, choices] = *std::next(values.begin(), draw(values.size()));
      config[field] = choices[draw(choices.size())];
    }
    const std::string error = error_for(config);
    worked += error == "(no error)" ? 1 : 0;
    EXPECT_LT(error.size(), 300u) << config;
  }
  EXPECT_GT(worked, 1500);
}

TEST(SchedulerConfigs, WhatIsNotSupportedIsNamed) {
  const auto error = [](const char* field, const json& value) {
    return error_for(kSdxl, field, value);
  };
  EXPECT_EQ(error("new_trick", 3),
            "scheduler_config.json: 'new_trick' is not known, and may change results: 3");
  EXPECT_EQ(error("_note", 3), "(no error)");
  EXPECT_EQ(error("new_trick", nullptr), "(no error)");
  EXPECT_EQ(error("_class_name", nullptr), "scheduler_config.json: '_class_name' is missing");
  EXPECT_THAT(
      error("_class_name", "PNDMScheduler"),
      HasSubstr("'_class_name' is 'PNDMScheduler', and only these are supported: FlowMatch"));
  EXPECT_THAT(error("thresholding", true), HasSubstr("'thresholding' is true, and only false"));
  EXPECT_THAT(error("trained_betas", {0.1, 0.2}), HasSubstr("'trained_betas'"));
  EXPECT_THAT(error("num_train_timesteps", 500), HasSubstr("'num_train_timesteps' is 500"));
  EXPECT_THAT(error("timestep_type", "continuous"), HasSubstr("'timestep_type'"));
  EXPECT_THAT(error("interpolation_type", "log_linear"), HasSubstr("'interpolation_type'"));
  EXPECT_THAT(error("variance_type", "learned_range"), HasSubstr("'variance_type'"));
  EXPECT_THAT(error("prediction_type", "flow_prediction"), HasSubstr("'prediction_type'"));
  EXPECT_THAT(error("algorithm_type", "dpmsolver"), HasSubstr("'algorithm_type' is 'dpmsolver'"));
  EXPECT_THAT(error_for({{"_class_name", "DDIMScheduler"}}), HasSubstr("'clip_sample' is true"));
  json both = kSdxl;
  both["use_karras_sigmas"] = true;
  EXPECT_THAT(error_for(both, "use_beta_sigmas", true),
              HasSubstr("'use_beta_sigmas' is true, and"));
  EXPECT_THAT(error_for(kWan, "use_exponential_sigmas", true), HasSubstr("'use_flow_sigmas'"));
  EXPECT_THAT(error_for(kWan, "use_flow_sigmas", false), HasSubstr("'prediction_type'"));
  EXPECT_THAT(error_for(kWan, "disable_corrector", {0}), HasSubstr("'disable_corrector'"));
  EXPECT_THAT(error_for(kQwenImage, "invert_sigmas", true), HasSubstr("'invert_sigmas'"));
  EXPECT_THAT(error_for(kQwenImage, "prediction_type", "epsilon"), HasSubstr("'prediction_type'"));
}

TEST(SchedulerChoices, MeanWhatTheyWouldInDiffusers) {
  const SchedulerConfig sdxl = parse(kSdxl), wan = parse(kWan), qwen = parse(kQwenImage);
  // The same as the config of that class with the same fields.
  const auto same = [](const SchedulerConfig& chosen, const json& config) {
    const Schedule a = make_schedule(chosen, 9, 4096), b = make_schedule(parse(config), 9, 4096);
    for (size_t i = 0; i < 9; ++i) {
      if (a.steps[i].sigma != b.steps[i].sigma || a.steps[i].latents != b.steps[i].latents ||
          a.steps[i].memory != b.steps[i].memory) {
        return false;
      }
    }
    return a.initial_scale == b.initial_scale && a.memories == b.memories;
  };
  const auto changed = [](json config, const json& fields) {
    config.update(fields);
    return config;
  };
  const std::map<std::string, json> diffusion = {
      {"euler", {{"_class_name", "EulerDiscreteScheduler"}}},
      {"euler-a", {{"_class_name", "EulerAncestralDiscreteScheduler"}}},
      {"ddim", {{"_class_name", "DDIMScheduler"}}},
      {"dpm++-2m", {{"_class_name", "DPMSolverMultistepScheduler"}}},
      {"dpm++-2m-karras",
       {{"_class_name", "DPMSolverMultistepScheduler"}, {"use_karras_sigmas", true}}},
      {"dpm++-2m-sde",
       {{"_class_name", "DPMSolverMultistepScheduler"}, {"algorithm_type", "sde-dpmsolver++"}}},
      {"unipc", {{"_class_name", "UniPCMultistepScheduler"}}},
  };
  for (const auto& [name, fields] : diffusion) {
    EXPECT_TRUE(same(with_scheduler(sdxl, name), changed(kSdxl, fields))) << name;
  }
  // A spacing that the model's config leaves open is the chosen class's own.
  json open = kSdxl;
  open.erase("timestep_spacing");
  EXPECT_TRUE(same(with_scheduler(parse(open), "ddim"),
                   changed(kSdxl, {{"_class_name", "DDIMScheduler"}})));

  const json flow = {{"use_flow_sigmas", true},
                     {"prediction_type", "flow_prediction"},
                     {"flow_shift", 3.0},
                     {"_class_name", "DPMSolverMultistepScheduler"}};
  EXPECT_TRUE(same(with_scheduler(wan, "dpm++-2m"), flow));
  EXPECT_TRUE(same(with_scheduler(wan, "unipc"), kWan));
  EXPECT_TRUE(same(with_scheduler(wan, "flow-euler"),
                   {{"_class_name", "FlowMatchEulerDiscreteScheduler"}, {"shift", 3.0}}));
  EXPECT_TRUE(same(with_scheduler(qwen, "flow-euler"), kQwenImage));
  EXPECT_TRUE(same(with_scheduler(qwen, "unipc"),
                   changed(kQwenImage, {{"_class_name", "UniPCMultistepScheduler"},
                                        {"use_flow_sigmas", true},
                                        {"prediction_type", "flow_prediction"}})));
}

TEST(SchedulerChoices, RefuseModelsThatTheyAreNotFor) {
  const SchedulerConfig sdxl = parse(kSdxl), wan = parse(kWan);
  const auto error = [](const SchedulerConfig& own, std::string_view name) {
    return error_of([&] { with_scheduler(own, name); });
  };
  EXPECT_EQ(error(sdxl, "flow-euler"),
            "scheduler: flow-euler is not for this model, which predicts no velocity");
  for (const char* name : {"euler", "euler-a", "ddim", "dpm++-2m-karras"}) {
    EXPECT_EQ(error(wan, name),
              fmt::format("scheduler: {} is not for this model, which predicts a velocity", name));
  }
  EXPECT_EQ(error(sdxl, "heun\n"),
            "scheduler: 'heun\\x0a' is not known; there are flow-euler, euler, euler-a, ddim, "
            "dpm++-2m, dpm++-2m-karras, dpm++-2m-sde, unipc");
  EXPECT_EQ(scheduler_choices().size(), 8u);
  for (const SchedulerChoice& choice : scheduler_choices()) {
    EXPECT_TRUE(choice.flow || choice.diffusion);
    EXPECT_LT(choice.description.size(), 90u);
  }
}

}  // namespace
}  // namespace halftone
