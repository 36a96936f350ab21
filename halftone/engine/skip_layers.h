// Guidance away from what a network predicts without some of its blocks (skip-layer guidance), as
// diffusers' pipeline of Stable Diffusion 3 has it.
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "halftone/engine/model_parts.h"

namespace halftone {

struct SkipLayers {
  std::set<int64_t> layers;  // none: off
  float scale = 2.8f;

  // Whether this step predicts without them, too: after the first 1 % and before 20 % of all steps.
  bool at(int step, int steps) const;
};

// "7,8,9". What is no list of numbers is an Error of the field.
std::set<int64_t> parse_layers(const std::string& text, const char* field);
std::string layers_text(const std::set<int64_t>& layers);

struct JobRequest;
// An Error where the model has no such blocks, or where they would change nothing: without a
// negative prediction, which they go together with, or in so few steps that none takes them.
void check_skip_layers(const JobRequest& request, const ModelParts& model);

}  // namespace halftone
