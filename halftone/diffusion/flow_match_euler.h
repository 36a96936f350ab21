// The flow-matching Euler scheduler: a list of sigmas from 1 down to 0, and a step between two.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

namespace halftone {

class ConfigReader;

// How the strength of a dynamic shift follows from a picture's size. Configs do not say: families
// do.
enum class MuRule : uint8_t {
  kLinear,  // in the number of image tokens, through (base_tokens, base_shift) and (max_.., max_..)
  kFlux2,   // FLUX.2's fit to tokens and steps
};
// The sigmas that are shifted. Configs do not say either.
enum class FlowSpacing : uint8_t {
  kByStep,    // from 1 to 1/steps
  kTrained,   // from the first to the last sigma of training, which are shifted already: SD3
  kLogistic,  // a logistic curve from 1 to 0: Stable Audio
};

struct FlowMatchConfig {
  double shift = 1;               // static
  bool dynamic_shifting = false;  // by the number of image tokens instead
  bool exponential = true;        // how mu shifts; linear otherwise
  double base_tokens = 256, max_tokens = 4096, base_shift = 0.5, max_shift = 1.15;
  double shift_terminal = 0;  // 0: none
  MuRule mu_rule = MuRule::kLinear;
  FlowSpacing spacing = FlowSpacing::kByStep;
};
FlowMatchConfig parse_flow_match_config(const nlohmann::json& json, const std::string& where);

// The fields above that configs have, in `config`; the static shift has a name of its own in each
// class of schedulers.
void read_flow_shift(const ConfigReader& read, const char* shift_name, FlowMatchConfig& config);

// The s of s t / (1 + (s - 1) t), static or dynamic, which shifts a sigma t.
double flow_shift(const FlowMatchConfig& config, int steps, int64_t image_tokens);

// steps + 1 sigmas, the last one 0.
std::vector<float> flow_match_sigmas(const FlowMatchConfig& config, int steps,
                                     int64_t image_tokens);

// Stretches sigmas so that the last one is `terminal`; a last one of 1 stays.
void stretch_to_terminal(std::span<double> sigmas, double terminal);

// latents += (next - sigma) * velocity
void euler_step(std::span<float> latents, std::span<const float> velocity, float sigma, float next);

}  // namespace halftone
