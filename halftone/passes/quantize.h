// Chooses the linears of a graph that run in a low-precision format, and says which, which not,
// and why.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "halftone/graph/graph.h"

namespace halftone {

// Which linears run in which format. Patterns are of the weight's name, with '*' for anything.
struct QuantizeRecipe {
  Format format;                        // of weights
  bool activations = true;              // quantize the input too; otherwise only the weight
  std::optional<Format> gradients;      // what training rounds gradients of outputs to
  bool round_weight_gradients = false;  // and whether their products with inputs are so, too
  std::set<std::string> trained;     // weights that stay as they are, and are rounded in the graph
  std::vector<std::string> include;  // empty: all
  struct Keep {
    std::string pattern, reason;
  };
  std::vector<Keep> keep;  // wins over include
  // Formats of single linears, over `format`; the first that matches counts. One that is not
  // quantized keeps them in high precision.
  struct Rule {
    std::string pattern;
    Format format;
    bool activations = true;  // quantize the input too, where the recipe does at all
  };
  std::vector<Rule> rules;
  int64_t least_size = 0;  // sides below this are kept
  // Weights that are stored in a format already run in it, whatever the recipe says.
  struct Stored {
    Format format;
    bool activations = true;
  };
  std::map<std::string, Stored> stored;
  // Calibrated scales of inputs, by the weight's name: FP8's, or NVFP4's global one. Inputs without
  // one, and formats of E8M0 scales, take theirs from the values at hand.
  std::map<std::string, float> input_scales;
};

struct QuantizeReport {
  struct Linear {
    std::string weight;  // its name
    Shape shape;
    Format format;
    bool activations = true;
  };
  std::vector<Linear> converted;
  struct Kept {
    std::string weight, reason;
    bool unsupported = false;  // it was selected, but the format does not take its shape
  };
  std::vector<Kept> kept;
};

struct QuantizedGraph {
  std::shared_ptr<Graph> graph;
  QuantizeReport report;
};

// Annotates the linears that the recipe selects. A recipe that selects none is an Error.
QuantizedGraph quantize_linears(const Graph& graph, const QuantizeRecipe& recipe);

}  // namespace halftone
