// What a run follows from, as it is written down: in checkpoints, so that another run does not go
// on from them, and in the adapter, for whoever uses it.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "halftone/io/safetensors_header.h"
#include "halftone/training/train.h"

namespace halftone {

struct TrainSource {
  std::string model_hash, data_hash;  // the latter is empty before the data are read
  std::string family, precision;      // of the base
  std::string gradients;              // what gradients are computed in
};

// By the names of options, in the order in which differences are told of.
nlohmann::ordered_json run_record(const TrainOptions& options, const TrainSource& source);
Metadata result_metadata(const TrainOptions& options, const TrainSource& source, size_t steps);

}  // namespace halftone
