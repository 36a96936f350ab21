#include "halftone/diffusion/flow_match_euler.h"

#include <cmath>

#include "halftone/io/config_reader.h"

namespace halftone {

FlowMatchConfig parse_flow_match_config(const nlohmann::json& json, const std::string& where) {
  const ConfigReader read(json, where);
  FlowMatchConfig c;
  read.must_be("_class_name", "FlowMatchEulerDiscreteScheduler");
  read.must_be("num_train_timesteps", 1000);
  c.shift = read.number("shift", c.shift, 1e-3, 1e3);
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
  for (const char* other : {"use_karras_sigmas", "use_exponential_sigmas", "use_beta_sigmas",
                            "invert_sigmas", "stochastic_sampling"}) {
    read.must_be(other, false);
  }
  read.finish();
  if (c.max_tokens == c.base_tokens) read.fail("max_image_seq_len", "equals base_image_seq_len");
  return c;
}

std::vector<float> flow_match_sigmas(const FlowMatchConfig& c, int steps, int64_t image_tokens) {
  std::vector<float> sigmas(static_cast<size_t>(steps));
  const double slope = (c.max_shift - c.base_shift) / (c.max_tokens - c.base_tokens);
  const double mu = c.base_shift + slope * (static_cast<double>(image_tokens) - c.base_tokens);
  const double strength = c.exponential ? std::exp(mu) : mu;
  for (int i = 0; i < steps; ++i) {
    const double last = 1.0 / steps;
    const double t = steps == 1 ? 1.0 : 1.0 + (last - 1.0) * i / (steps - 1);
    const double shifted = c.dynamic_shifting ? strength / (strength + (1 / t - 1))
                                              : c.shift * t / (1 + (c.shift - 1) * t);
    sigmas[i] = static_cast<float>(shifted);
  }
  if (c.shift_terminal != 0) {  // stretched so that the last one is where the config says
    const double factor = (1 - double{sigmas.back()}) / (1 - c.shift_terminal);
    for (float& sigma : sigmas) sigma = static_cast<float>(1 - (1 - double{sigma}) / factor);
  }
  for (const float sigma : sigmas) {
    if (!(sigma >= 0 && sigma <= 1)) {
      throw Error(ErrorCode::kInvalidInput, "scheduler",
                  "has no sigmas from 1 to 0 for {} steps and {} image tokens: shift {}, "
                  "base_shift {}, max_shift {}, shift_terminal {}",
                  steps, image_tokens, c.shift, c.base_shift, c.max_shift, c.shift_terminal);
    }
  }
  sigmas.push_back(0);
  return sigmas;
}

void euler_step(std::span<float> latents, std::span<const float> velocity, float sigma,
                float next) {
  for (size_t i = 0; i < latents.size(); ++i) latents[i] += (next - sigma) * velocity[i];
}

}  // namespace halftone
