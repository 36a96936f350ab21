// What programs made for A1111's web UI call things.
#pragma once

#include <string>

#include "halftone/diffusion/scheduler.h"

namespace halftone {

// The scheduler that they mean by a sampler, "DPM++ 2M", and a schedule, "Karras", for a model
// whose own configuration this is. Empty: the model's own, since they mean none that it could use.
std::string scheduler_of_sampler(const std::string& sampler, const std::string& schedule,
                                 const SchedulerConfig& own);

// "emoji [1a2b3c4d5e]", as they write a model with its hash, is "emoji".
std::string model_of_title(const std::string& title);

}  // namespace halftone
