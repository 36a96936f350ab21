// The words in which people ask for a run, on the command line and in requests, and the rules that
// they stand for.
#pragma once

#include <string>

#include "halftone/training/train.h"

namespace halftone {

struct TrainNames {
  std::string mode = "lora";             // lora, full or qat
  std::string schedule = "constant";     // constant or cosine
  std::string optimizer = "adamw";       // adamw or adamw8bit
  std::string recompute = "rows";        // none, rows or blocks
  std::string backward = "auto";         // auto, bf16 or fp8
  std::string weights = "fp32";          // fp32 or bf16
  std::string weight_gradient = "bf16";  // bf16 or fp8
};

// An Error that names the field where a word is none of these.
void set_rules(const TrainNames& names, TrainOptions& options);

// The learning rate of those who ask for none.
float usual_learning_rate(TrainMode mode);

}  // namespace halftone
