// What halftone info tells, as a function of what there is: for machines that one does not own.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "halftone/runtime/devices.h"

namespace halftone::cli {

struct Machine {
  CpuInfo cpu;
  GpuList gpus;
  bool cuda = false;  // whether this build has the CUDA backend
};
Machine this_machine();

std::string to_text(const Machine& machine);
nlohmann::ordered_json to_json(const Machine& machine);

}  // namespace halftone::cli
