// What is wrong with a specification or a request by itself, said before any work. Errors name the
// field.
#pragma once

#include "halftone/engine/engine.h"

namespace halftone {

void check(const ModelSpec& spec);

// A guidance that a model that is sampled like this has no use for.
void check_guidance(float guidance, const Sampling& of);

// Of a model that is guided by this rule.
void check(const GenerateRequest& request, const Sampling& of);

// What a model cannot read of a request's texts: the prompt, and the negative one where it counts.
void check_prompts(const JobRequest& request, const ModelParts& model);

// An original picture that the model's network would not be told of, or of odd sizes.
void check_original(const JobRequest& request, const ModelParts& model);

}  // namespace halftone
