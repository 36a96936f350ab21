// A run's events as JSON, one object each: "event", "time" in seconds since 1970, and what it says.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "halftone/base/error.h"
#include "halftone/training/train_events.h"

namespace halftone::cli {

nlohmann::ordered_json event_json(const TrainEvent& event);
// What ended a run.
nlohmann::ordered_json event_json(const Error& error);

}  // namespace halftone::cli
