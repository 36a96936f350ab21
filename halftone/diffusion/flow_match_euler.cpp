#include "halftone/diffusion/flow_match_euler.h"

#include <cmath>

#include "halftone/io/config_reader.h"

namespace halftone {
namespace {

double flux2_mu(double tokens, int steps) {
  const double at_200_steps = 1.6927e-4 * tokens + 0.45666666;
  if (tokens > 4300) return at_200_steps;
  const double at_10_steps = 8.73809524e-5 * tokens + 1.89833333;
  return at_200_steps + (at_200_steps - at_10_steps) / 190 * (steps - 200);
}

double flow_mu(const FlowMatchConfig& c, int steps, int64_t image_tokens) {
  const auto tokens = static_cast<double>(image_tokens);
  if (c.mu_rule == MuRule::kFlux2) return flux2_mu(tokens, steps);
  const double slope = (c.max_shift - c.base_shift) / (c.max_tokens - c.base_tokens);
  return c.base_shift + slope * (tokens - c.base_tokens);
}

double shifted(double shift, double t) { return shift * t / (1 + (shift - 1) * t); }

// Sigmas before they are shifted.
std::vector<double> unshifted(const FlowMatchConfig& c, int steps) {
  double last = 1.0 / steps;
  if (c.spacing == FlowSpacing::kTrained) {
    last = c.dynamic_shifting ? 1e-3 : shifted(c.shift, 1e-3);
  }
  std::vector<double> sigmas(static_cast<size_t>(steps));
  for (int i = 0; i < steps; ++i) {
    sigmas[i] = steps == 1 ? 1.0 : 1.0 + (last - 1.0) * i / (steps - 1);
    if (c.spacing == FlowSpacing::kLogistic && i > 0) {
      sigmas[i] = 1 / (1 + std::exp(2 - 8.2 * (1 - static_cast<double>(i) / steps)));
    }
  }
  return sigmas;
}

}  // namespace

void read_flow_shift(const ConfigReader& read, const char* shift_name, FlowMatchConfig& c) {
  c.shift = read.number(shift_name, c.shift, 1e-3, 1e3);
  c.dynamic_shifting = read.boolean("use_dynamic_shifting", false);
  const std::string type = read.text("time_shift_type", "exponential");
  if (type != "exponential" && type != "linear") read.fail("time_shift_type", "is not known");
  c.exponential = type == "exponential";
  constexpr int64_t kMostTokens = 1 << 24;
  c.base_tokens = static_cast<double>(read.integer("base_image_seq_len", 256, 1, kMostTokens));
  c.max_tokens = static_cast<double>(read.integer("max_image_seq_len", 4096, 1, kMostTokens));
  c.base_shift = read.number("base_shift", c.base_shift, -100, 100);
  c.max_shift = read.number("max_shift", c.max_shift, -100, 100);
  c.shift_terminal = read.number("shift_terminal", 0, 0, 0.99);
  if (c.max_tokens == c.base_tokens) read.fail("max_image_seq_len", "equals base_image_seq_len");
}

FlowMatchConfig parse_flow_match_config(const nlohmann::json& json, const std::string& where) {
  const ConfigReader read(json, where);
  FlowMatchConfig c;
  read.must_be("_class_name", "FlowMatchEulerDiscreteScheduler");
  read.must_be("num_train_timesteps", 1000);
  read_flow_shift(read, "shift", c);
  for (const char* other : {"use_karras_sigmas", "use_exponential_sigmas", "use_beta_sigmas",
                            "invert_sigmas", "stochastic_sampling"}) {
    read.must_be(other, false);
  }
  read.finish();
  return c;
}

double flow_shift(const FlowMatchConfig& c, int steps, int64_t image_tokens) {
  if (!c.dynamic_shifting) return c.shift;
  const double mu = flow_mu(c, steps, image_tokens);
  return c.exponential ? std::exp(mu) : mu;
}

void stretch_to_terminal(std::span<double> sigmas, double terminal) {
  const double factor = (1 - sigmas.back()) / (1 - terminal);
  if (factor == 0) return;
  for (double& sigma : sigmas) sigma = 1 - (1 - sigma) / factor;
}

std::vector<float> flow_match_sigmas(const FlowMatchConfig& c, int steps, int64_t image_tokens) {
  const double shift = flow_shift(c, steps, image_tokens);
  std::vector<double> sigmas = unshifted(c, steps);
  for (double& t : sigmas) {
    t = static_cast<float>(c.dynamic_shifting ? shift / (shift + (1 / t - 1)) : shifted(shift, t));
  }
  if (c.shift_terminal != 0) stretch_to_terminal(sigmas, c.shift_terminal);
  for (const double sigma : sigmas) {
    if (!(sigma >= 0 && sigma <= 1)) {
      throw Error(ErrorCode::kInvalidInput, "scheduler",
                  "has no sigmas from 1 to 0 for {} steps and {} image tokens: shift {}, "
                  "base_shift {}, max_shift {}, shift_terminal {}",
                  steps, image_tokens, c.shift, c.base_shift, c.max_shift, c.shift_terminal);
    }
  }
  std::vector<float> rounded(sigmas.begin(), sigmas.end());
  rounded.push_back(0);
  return rounded;
}

void euler_step(std::span<float> latents, std::span<const float> velocity, float sigma,
                float next) {
  for (size_t i = 0; i < latents.size(); ++i) latents[i] += (next - sigma) * velocity[i];
}

}  // namespace halftone
