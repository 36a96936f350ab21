// A comparison as JSON, and as one HTML page that needs nothing else: charts are inline SVG, and
// pictures are inside.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "halftone/quantize/parity.h"

namespace halftone {

struct ParityReport {
  std::string model, hash, reference, device, version;  // reference: the precision's name
  std::vector<std::string> fallbacks;                   // what ran in another way than asked for
  ParityOptions options;
  ReferenceRun run;
  std::vector<ParityResult> results;  // precisions, then the floor
};

nlohmann::ordered_json parity_json(const ParityReport& report);
std::string parity_page(const ParityReport& report);

}  // namespace halftone
