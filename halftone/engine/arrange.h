// How a loaded model is kept for a request, by the memory that there is: the ladder
// (memory_ladder.h) with the numbers of a real model.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "halftone/engine/engine.h"
#include "halftone/engine/memory_ladder.h"

namespace halftone {

enum class TileChoice { kAuto, kOn, kOff };

struct ArrangeOptions {
  int64_t limit = 0;  // bytes; 0: as much as is free
  TileChoice tiles = TileChoice::kAuto;
};

struct ArrangedMemory {
  LadderNeeds needs;
  LadderChoice choice;
  int64_t available = 0;  // bytes, by the limit or by what is free
  bool limited = false;   // by a limit
  std::optional<TileSize> tiles;
  ModelMemory memory;  // of the arrangement, while it needs the most

  // What was chosen and why, where it is not everything resident; otherwise empty.
  std::string line() const;
};

// Chooses and applies: `loaded` has its model, pipeline and text precision afterwards as the
// arrangement has them, in memory where everything is to be resident. It was loaded bare. An Error
// where nothing fits says what the least is.
ArrangedMemory arrange(LoadedModel& loaded, const GenerateRequest& request,
                       const ArrangeOptions& options);

nlohmann::ordered_json memory_plan_json(const ArrangedMemory& plan);

}  // namespace halftone
