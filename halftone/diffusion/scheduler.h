// Schedulers: a config as diffusers writes it, or as a user's choice changes it, becomes a
// Schedule.
#pragma once

#include <cstdint>
#include <limits>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "halftone/diffusion/flow_match_euler.h"
#include "halftone/diffusion/schedule.h"

namespace halftone {

enum class SchedulerKind : uint8_t {
  kFlowMatchEuler,
  kEuler,
  kEulerAncestral,
  kDdim,
  kDpmSolver,  // DPM-Solver++, multistep
  kUniPc,
};
enum class BetaSchedule : uint8_t { kLinear, kScaledLinear, kCosine };
enum class TimestepSpacing : uint8_t { kLeading, kTrailing, kLinspace };
// Where sigmas lie between the largest and the smallest, if not where the timesteps put them.
enum class SigmaSpacing : uint8_t { kTimesteps, kKarras, kExponential, kBeta, kUniformLambda };

// Fields that a kind does not have are kept: they count as soon as another kind is chosen.
struct SchedulerConfig {
  SchedulerKind kind = SchedulerKind::kFlowMatchEuler;
  Prediction prediction = Prediction::kVelocity;

  // The noise of training.
  BetaSchedule betas = BetaSchedule::kLinear;
  double beta_start = 1e-4, beta_end = 0.02;
  bool zero_terminal_snr = false;

  // Which of its levels the steps are at.
  std::optional<TimestepSpacing> timestep_spacing;  // none: the kind's own
  int64_t steps_offset = 0;
  SigmaSpacing sigma_spacing = SigmaSpacing::kTimesteps;
  std::optional<double> sigma_min, sigma_max;  // of a sigma_spacing, instead of those of training
  double lambda_min_clipped = -std::numeric_limits<double>::infinity();  // DPM-Solver++ alone
  bool final_sigma_zero = true;  // the last step ends at 0; otherwise at the smallest sigma

  // DPM-Solver++ and UniPC.
  int solver_order = 2;  // 1 .. 3
  bool lower_order_final = true;
  bool euler_at_final = false;
  bool stochastic = false;  // SDE-DPM-Solver++; in FlowMatchEuler fresh noise in every step
  bool heun = false;        // DPM-Solver++ of order 2; midpoint otherwise
  bool bh1 = false;         // UniPC; B(h) of the second kind otherwise

  // DDIM.
  bool set_alpha_to_one = true;
  bool clip_sample = false;  // not linear, and refused
  double eta = 0;            // 0 .. 1, from DDIM to DDPM; configs do not have it

  // Flow matching: FlowMatchEuler always, DPM-Solver++ and UniPC if they are told.
  bool flow_sigmas = false;
  FlowMatchConfig flow;
  int flow_timesteps = 1000;  // a flow's timestep is sigma times this
};

// Dispatches on `_class_name`. Every field is used, refused by name, or known to change nothing.
SchedulerConfig parse_scheduler_config(const nlohmann::json& json, const std::string& where);

// What a user may choose instead of a model's own.
struct SchedulerChoice {
  std::string_view name;
  std::string_view description;
  bool diffusion, flow;  // works for networks that predict epsilon, v or the sample; the velocity
};
std::span<const SchedulerChoice> scheduler_choices();
// The config that a choice means for a model whose own config this is.
SchedulerConfig with_scheduler(const SchedulerConfig& own, std::string_view name);

// 1 .. kMostSteps steps; image_tokens matter where the shift of a flow is dynamic.
inline constexpr int kMostSteps = 1000;
Schedule make_schedule(const SchedulerConfig& config, int steps, int64_t image_tokens);

}  // namespace halftone
