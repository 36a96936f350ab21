// How predictions for the prompt and for the negative prompt become one.
#pragma once

#include <cstdint>
#include <span>

#include "halftone/graph/ops.h"

namespace halftone {

enum class GuidanceRule : uint8_t {
  kNone,          // the network takes no negative prompt
  kFromPrompt,    // positive + g (positive - negative): 0 is off
  kFromNegative,  // negative + g (positive - negative): 1 is off, and so is 0
};

// Whether this strength needs a prediction for the negative prompt at all.
inline bool is_guided(GuidanceRule rule, float strength) {
  return rule == GuidanceRule::kFromPrompt
             ? strength != 0
             : rule == GuidanceRule::kFromNegative && strength > 1;  // as diffusers has it
}

// strength is broadcast against the predictions: one per row.
inline Value guided(GuidanceRule rule, Value positive, Value negative, Value strength) {
  const Value away = (positive - negative) * strength;
  return (rule == GuidanceRule::kFromPrompt ? positive : negative) + away;
}

// The same in the CPU's memory, in place of the positive prediction.
inline void guide(GuidanceRule rule, float strength, std::span<float> positive,
                  std::span<const float> negative) {
  for (size_t i = 0; i < positive.size(); ++i) {
    const float away = (positive[i] - negative[i]) * strength;
    positive[i] = (rule == GuidanceRule::kFromPrompt ? positive[i] : negative[i]) + away;
  }
}

}  // namespace halftone
