// The schedulers that a user may name, and what each means for a model.
#include <algorithm>
#include <string>

#include "halftone/base/error.h"
#include "halftone/diffusion/scheduler.h"

namespace halftone {
namespace {

constexpr SchedulerChoice kChoices[] = {
    {"flow-euler", "Euler along the velocity, for flow models", false, true},
    {"euler", "Euler, for epsilon, v and sample prediction", true, false},
    {"euler-a", "Euler ancestral, with fresh noise, for epsilon, v and sample prediction", true,
     false},
    {"ddim", "DDIM, for epsilon, v and sample prediction", true, false},
    {"dpm++-2m", "DPM-Solver++ of second order, for every kind of prediction", true, true},
    {"dpm++-2m-karras", "the same on Karras' sigmas, for epsilon, v and sample prediction", true,
     false},
    {"dpm++-2m-sde", "the same with fresh noise, for every kind of prediction", true, true},
    {"unipc", "UniPC, predictor and corrector, for every kind of prediction", true, true},
};

const SchedulerChoice& find_choice(std::string_view name) {
  std::string known;
  for (const SchedulerChoice& choice : kChoices) {
    if (choice.name == name) return choice;
    known += (known.empty() ? "" : ", ") + std::string(choice.name);
  }
  throw Error(ErrorCode::kInvalidInput, "scheduler", "'{}' is not known; there are {}",
              printable(name, 40), known);
}

SchedulerKind kind_of(std::string_view name) {
  if (name == "flow-euler") return SchedulerKind::kFlowMatchEuler;
  if (name == "euler") return SchedulerKind::kEuler;
  if (name == "euler-a") return SchedulerKind::kEulerAncestral;
  if (name == "ddim") return SchedulerKind::kDdim;
  return name == "unipc" ? SchedulerKind::kUniPc : SchedulerKind::kDpmSolver;
}

}  // namespace

std::span<const SchedulerChoice> scheduler_choices() { return kChoices; }

SchedulerConfig with_scheduler(const SchedulerConfig& own, std::string_view name) {
  const SchedulerChoice& choice = find_choice(name);
  const bool flow = own.prediction == Prediction::kVelocity;
  if (flow ? !choice.flow : !choice.diffusion) {
    throw Error(ErrorCode::kInvalidInput, "scheduler",
                "{} is not for this model, which predicts {}", choice.name,
                flow ? "a velocity" : "no velocity");
  }
  SchedulerConfig c = own;
  c.kind = kind_of(name);
  if (flow) c.flow_sigmas = true;
  if (c.kind != own.kind) {
    c.stochastic = false;
    // Only DPM-Solver++ has this one.
    if (c.sigma_spacing == SigmaSpacing::kUniformLambda) c.sigma_spacing = SigmaSpacing::kTimesteps;
  }
  if (c.kind == SchedulerKind::kDpmSolver) {  // the name says all of this
    c.solver_order = 2;
    c.stochastic = name == "dpm++-2m-sde";
    c.sigma_spacing = name == "dpm++-2m-karras" ? SigmaSpacing::kKarras : SigmaSpacing::kTimesteps;
  }
  return c;
}

}  // namespace halftone
