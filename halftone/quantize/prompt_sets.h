// Prompts that a model is quantized with: in three lists that have none in common, because what
// was fitted to a prompt says little about prompts that nobody has seen.
#pragma once

#include <string>
#include <vector>

namespace halftone {

struct PromptSets {
  std::vector<std::string> calibration;  // inputs are watched, and weights rounded for them
  std::vector<std::string> search;       // formats are chosen by them
  std::vector<std::string> certificate;  // and the result is measured on these
};

// Of our own, for where none are given: things, places and people, one and several, as the captions
// say it that the emoji model has learned from (tools/emoji/captions.py).
PromptSets usual_prompt_sets();

// Of a shorter list none can be spared.
inline constexpr size_t kFewestToSplit = 3;

// A user's list. Every fourth prompt is measured on, and with a search every fourth decides about
// formats; the rest is calibrated on. Of a prompt that is there twice one is left. A list that is
// too short is calibrated on, and the others are our own.
PromptSets split_prompts(const std::vector<std::string>& prompts, bool searches);

// `prompts` without those in `seen`.
std::vector<std::string> unseen(const std::vector<std::string>& prompts,
                                const std::vector<std::string>& seen);

}  // namespace halftone
