// What is wrong with a specification or a request by itself, said before any work. Errors name the
// field.
#pragma once

#include "halftone/engine/engine.h"

namespace halftone {

void check(const ModelSpec& spec);

// A guidance that a model with this rule has no use for.
void check_guidance(float guidance, GuidanceRule rule);

// Of a model that is guided by this rule.
void check(const GenerateRequest& request, GuidanceRule rule);

// What a model cannot read of a request's texts: the prompt, and the negative one where it counts.
void check_prompts(const JobRequest& request, const ModelParts& model);

}  // namespace halftone
