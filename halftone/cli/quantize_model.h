// halftone quantize --model: flags to options, and what is printed meanwhile.
#pragma once

#include "halftone/cli/cli.h"
#include "halftone/cli/model_options.h"

namespace halftone::cli {

// As they stand on the command line.
struct QuantizeModelFlags {
  ModelOptions model;  // its precision and compile are not looked at
  SamplingOptions sampling;
  std::string output, format, recipe, budget, minimize = "both", rounding = "auto",
                                              activations = "auto", dialect = "halftone",
                                              split_inputs = "off";
  std::vector<std::string> include, exclude;
  bool calibrate = false;
  std::string prompts;  // a file; empty: prompts of our own
  int samples = 0, certify = 8, search_points = 8;
  bool json = false;
};

void add_quantize_model(CLI::App& command, QuantizeModelFlags& flags);
void run_quantize_model(const CLI::App& command, const QuantizeModelFlags& flags,
                        const Context& context);

}  // namespace halftone::cli
