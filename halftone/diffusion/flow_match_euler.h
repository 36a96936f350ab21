// The flow-matching Euler scheduler: a list of sigmas from 1 down to 0, and a step between two.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

namespace halftone {

struct FlowMatchConfig {
  double shift = 1;               // static
  bool dynamic_shifting = false;  // by the number of image tokens instead
  bool exponential = true;        // how mu shifts; linear otherwise
  double base_tokens = 256, max_tokens = 4096, base_shift = 0.5, max_shift = 1.15;
  double shift_terminal = 0;  // 0: none
};
FlowMatchConfig parse_flow_match_config(const nlohmann::json& json, const std::string& where);

// steps + 1 sigmas, the last one 0, from the unshifted linspace(1, 1/steps, steps).
std::vector<float> flow_match_sigmas(const FlowMatchConfig& config, int steps,
                                     int64_t image_tokens);

// latents += (next - sigma) * velocity
void euler_step(std::span<float> latents, std::span<const float> velocity, float sigma, float next);

}  // namespace halftone
