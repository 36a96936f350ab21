// Reads scheduler_config.json. The six classes share most names, and a config often holds fields of
// classes it was made from: those are read too, for who chooses another class.
#include <array>
#include <utility>

#include "halftone/diffusion/scheduler.h"
#include "halftone/io/config_reader.h"

namespace halftone {
namespace {

template <class Value, size_t n>
using Names = std::array<std::pair<std::string_view, Value>, n>;

constexpr Names<SchedulerKind, 6> kClasses = {{
    {"FlowMatchEulerDiscreteScheduler", SchedulerKind::kFlowMatchEuler},
    {"EulerDiscreteScheduler", SchedulerKind::kEuler},
    {"EulerAncestralDiscreteScheduler", SchedulerKind::kEulerAncestral},
    {"DDIMScheduler", SchedulerKind::kDdim},
    {"DPMSolverMultistepScheduler", SchedulerKind::kDpmSolver},
    {"UniPCMultistepScheduler", SchedulerKind::kUniPc},
}};
constexpr Names<Prediction, 4> kPredictions = {{{"epsilon", Prediction::kEpsilon},
                                                {"v_prediction", Prediction::kV},
                                                {"sample", Prediction::kSample},
                                                {"flow_prediction", Prediction::kVelocity}}};
constexpr Names<BetaSchedule, 3> kBetas = {{{"linear", BetaSchedule::kLinear},
                                            {"scaled_linear", BetaSchedule::kScaledLinear},
                                            {"squaredcos_cap_v2", BetaSchedule::kCosine}}};
constexpr Names<TimestepSpacing, 3> kSpacings = {{{"leading", TimestepSpacing::kLeading},
                                                  {"trailing", TimestepSpacing::kTrailing},
                                                  {"linspace", TimestepSpacing::kLinspace}}};
constexpr Names<bool, 2> kFinalSigmas = {{{"zero", true}, {"sigma_min", false}}};
constexpr Names<bool, 2> kAlgorithms = {{{"dpmsolver++", false}, {"sde-dpmsolver++", true}}};
enum class SolverType : uint8_t { kMidpoint, kHeun, kBh1, kBh2, kLogRho };
constexpr Names<SolverType, 5> kSolverTypes = {{{"midpoint", SolverType::kMidpoint},
                                                {"heun", SolverType::kHeun},
                                                {"bh1", SolverType::kBh1},
                                                {"bh2", SolverType::kBh2},
                                                {"logrho", SolverType::kLogRho}}};

template <class Value, size_t n>
Value choice(const ConfigReader& read, const char* field, const Names<Value, n>& names) {
  const std::string text = read.text(field);
  std::string known;
  for (const auto& [name, value] : names) {
    if (text == name) return value;
    known += known.empty() ? "" : ", ";
    known += name;
  }
  read.fail(field,
            fmt::format("is '{}', and only these are supported: {}", printable(text, 40), known));
}
template <class Value, size_t n>
Value choice(const ConfigReader& read, const char* field, const Names<Value, n>& names,
             Value fallback) {
  return read.has(field) ? choice(read, field, names) : fallback;
}

void read_noise(const ConfigReader& read, SchedulerConfig& c) {
  c.betas = choice(read, "beta_schedule", kBetas, c.betas);
  c.beta_start = read.number("beta_start", c.beta_start, 1e-7, 0.5);
  c.beta_end = read.number("beta_end", c.beta_end, 1e-7, 0.999);
  c.zero_terminal_snr = read.boolean("rescale_betas_zero_snr", false);
  read.must_be_empty({"trained_betas"});
}

void read_spacing(const ConfigReader& read, SchedulerConfig& c) {
  if (read.has("timestep_spacing")) {
    c.timestep_spacing = choice(read, "timestep_spacing", kSpacings);
  }
  c.steps_offset = read.integer("steps_offset", 0, 0, 999);
  constexpr std::pair<const char*, SigmaSpacing> kFlags[] = {
      {"use_karras_sigmas", SigmaSpacing::kKarras},
      {"use_exponential_sigmas", SigmaSpacing::kExponential},
      {"use_beta_sigmas", SigmaSpacing::kBeta},
      {"use_lu_lambdas", SigmaSpacing::kUniformLambda},
  };
  for (const auto& [field, spacing] : kFlags) {
    if (!read.boolean(field, false)) continue;
    if (spacing == SigmaSpacing::kUniformLambda && c.kind != SchedulerKind::kDpmSolver) continue;
    if (c.sigma_spacing != SigmaSpacing::kTimesteps) {
      read.fail(field, "is true, and so is another spacing of sigmas");
    }
    c.sigma_spacing = spacing;
  }
  if (read.has("sigma_min")) c.sigma_min = read.number("sigma_min", 0, 1e-6, 1e6);
  if (read.has("sigma_max")) c.sigma_max = read.number("sigma_max", 0, 1e-6, 1e6);
  c.lambda_min_clipped = read.number("lambda_min_clipped", c.lambda_min_clipped,
                                     -std::numeric_limits<double>::infinity(), 100);
  c.final_sigma_zero = choice(read, "final_sigmas_type", kFinalSigmas, true);
  read.must_be("interpolation_type", "linear");
  read.must_be("timestep_type", "discrete");  // continuous ones are what EDM networks are told
}

void read_solver(const ConfigReader& read, SchedulerConfig& c) {
  c.solver_order = static_cast<int>(read.integer("solver_order", 2, 1, 3));
  c.lower_order_final = read.boolean("lower_order_final", true);
  c.euler_at_final = read.boolean("euler_at_final", false);
  // Names of the other solver stand for the default of this one.
  const auto type = choice(read, "solver_type", kSolverTypes, SolverType::kLogRho);
  c.heun = type == SolverType::kHeun;
  c.bh1 = type == SolverType::kBh1;
  const bool sde = choice(read, "algorithm_type", kAlgorithms, false);
  const bool flow_noise = read.boolean("stochastic_sampling", false);
  if (c.kind == SchedulerKind::kDpmSolver) c.stochastic = sde;
  if (c.kind == SchedulerKind::kFlowMatchEuler) c.stochastic = flow_noise;
  read.must_be("predict_x0", true);
  read.must_be_empty({"disable_corrector", "solver_p"});
}

void read_flow(const ConfigReader& read, SchedulerConfig& c) {
  const bool flow_match = c.kind == SchedulerKind::kFlowMatchEuler;
  c.flow_sigmas = read.boolean("use_flow_sigmas", false);
  read_flow_shift(read, flow_match ? "shift" : "flow_shift", c.flow);
  read.ignore({flow_match ? "flow_shift" : "shift"});  // the other classes' name for it
  read.must_be("invert_sigmas", false);
  if (flow_match) {
    read.must_be_one_of("num_train_timesteps", {1, 1000});
    c.flow_timesteps = static_cast<int>(read.integer("num_train_timesteps", 1000, 1, 1000));
  } else {
    read.must_be("num_train_timesteps", 1000);
  }
}

void read_prediction(const ConfigReader& read, SchedulerConfig& c) {
  const bool flow_match = c.kind == SchedulerKind::kFlowMatchEuler;
  const bool solver = c.kind == SchedulerKind::kDpmSolver || c.kind == SchedulerKind::kUniPc;
  c.prediction = choice(read, "prediction_type", kPredictions,
                        flow_match ? Prediction::kVelocity : Prediction::kEpsilon);
  const bool velocity = c.prediction == Prediction::kVelocity;
  if (velocity && !flow_match && !(solver && c.flow_sigmas)) {
    read.fail("prediction_type", "is flow_prediction, which takes a solver with 'use_flow_sigmas'");
  }
  if (!velocity && flow_match) read.fail("prediction_type", "is not flow_prediction");
}

void read_ddim(const ConfigReader& read, SchedulerConfig& c) {
  const bool ddim = c.kind == SchedulerKind::kDdim;
  c.set_alpha_to_one = read.boolean("set_alpha_to_one", true);
  c.clip_sample = read.boolean("clip_sample", ddim);
  if (ddim && c.clip_sample) {
    read.fail("clip_sample", "is true, as it is where it is missing, and only false is supported");
  }
}

}  // namespace

SchedulerConfig parse_scheduler_config(const nlohmann::json& json, const std::string& where) {
  const ConfigReader read(json, where);
  read.require({"_class_name"});
  SchedulerConfig c;
  c.kind = choice(read, "_class_name", kClasses);
  read_noise(read, c);
  read_spacing(read, c);
  read_solver(read, c);
  read_flow(read, c);
  read_prediction(read, c);
  read_ddim(read, c);
  read.must_be("thresholding", false);
  // A network that predicts its variance too has twice the channels.
  read.must_be_one_of("variance_type",
                      {"fixed_small", "fixed_small_log", "fixed_large", "fixed_large_log"});
  // Of clip_sample and thresholding, which are off; and of PNDM, which leaves its fields behind.
  read.ignore(
      {"clip_sample_range", "sample_max_value", "dynamic_thresholding_ratio", "skip_prk_steps"});
  read.finish();
  return c;
}

}  // namespace halftone
