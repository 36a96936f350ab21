// halftone quantize --model: a whole model, calibrated, searched and certified.
#pragma once

#include "halftone/cli/cli.h"
#include "halftone/cli/model_options.h"

namespace halftone::cli {

struct QuantizeModelOptions {
  ModelOptions model;  // its precision and compile are not looked at
  SamplingOptions sampling;
  std::string output, format, recipe, budget, minimize = "both", rounding = "auto",
                                              activations = "auto", dialect = "halftone";
  std::vector<std::string> include, exclude;
  bool calibrate = false;
  std::string prompts;  // a file; empty: prompts of our own
  int samples = 0;      // pictures; 0: one per prompt
  int certify = 8;      // pictures that the certificate is measured on
  bool json = false;
};

// Empty if weights of this format have a place in the dialect, otherwise why not.
std::string why_not_held(const std::string& dialect, const Format& format);
// An Error that names both where they have none.
void check_dialect_holds(const std::string& dialect, const Format& format);

void quantize_model(const QuantizeModelOptions& options, const Context& context);

}  // namespace halftone::cli
