// Statistics of a tiny AutoencoderKLFlux2, as tools/golden/flux2_parts.py has them.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tests/support/procedural.h"
#include "tests/support/tensors.h"

namespace halftone::test {

// Means +- 0.5 and variances 1 +- 0.8, as BF16 holds them.
inline std::vector<std::pair<std::string, Tensor>> flux2_statistics(int64_t channels) {
  const auto of = [&](const std::string& name, float centre, float range) {
    const Tensor u = procedural_uniform(name, {channels});
    std::vector<float> values;
    for (const float v : u.as<float>()) values.push_back(centre + range * v);
    return std::pair<std::string, Tensor>(name, bf16_tensor({channels}, values));
  };
  return {of("bn.running_mean", 0, 0.5f), of("bn.running_var", 1, 0.8f)};
}

}  // namespace halftone::test
