// What was chosen, and why, as JSON: the same in reports, events and answers.
#pragma once

#include <nlohmann/json.hpp>

#include "halftone/engine/precision.h"

namespace halftone {

inline nlohmann::ordered_json choice_json(const Choice& choice) {
  return {{"asked", choice.asked}, {"used", choice.used}, {"how", choice.how}, {"why", choice.why}};
}

}  // namespace halftone
