// The flags of `halftone train`, and the options that they stand for.
#pragma once

#include <memory>
#include <string>

#include "halftone/cli/model_options.h"
#include "halftone/training/train_names.h"

namespace CLI {
class App;
}

namespace halftone::cli {

struct TrainFlags {
  ModelOptions model;
  TrainOptions train;
  std::string data, output, prior, held_out, cache, config, events;
  TrainNames names;
  std::string naming = "diffusers", stored = "bf16";
  std::string sample_size;
  float alpha = -1;
  // Ends the others where this one fails: after it was said why.
  std::unique_ptr<Collective> processes;
};

// All but what a run cannot be without.
void add_train_options(CLI::App& command, TrainFlags& flags);
// Refuses flags that the mode has no use for, and sets its usual rate.
void check_train_mode(const CLI::App& command, TrainFlags& flags);
TrainOptions train_options(const TrainFlags& flags, const Context& context);

}  // namespace halftone::cli
