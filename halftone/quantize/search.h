// Chooses a format for every group of linears: measures what each costs in quality alone, and
// spends bytes where they buy most. Rounding errors of different layers are independent, so what
// they do to a prediction adds up; the choice is measured as a whole before it is believed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "halftone/base/progress.h"
#include "halftone/passes/quantize.h"
#include "halftone/quantize/budget.h"
#include "halftone/quantize/calibrate.h"

namespace halftone {

// A way to run a linear: weights in a format, and inputs as well or in high precision.
struct Candidate {
  Format format;
  bool activations = true;

  std::string name() const;  // "fp8", "fp8 weights", "bf16"
};

// What is to be little: bytes of weights, time of products (as tensor cores with this format take
// it), or both, each as a share of what high precision takes.
enum class Minimize : uint8_t { kBoth, kBytes, kTime };
std::string to_string(Minimize minimize);

// Linears that read the same input; they get one format, so that they stay one product.
struct SearchGroup {
  std::vector<std::string> weights;
  // By candidate; the last one is high precision.
  std::vector<int64_t> bytes;
  std::vector<double> cost;  // what is minimized
  // 1 - cosine with this group alone in the candidate; of the last 0, of what is no number 2.
  std::vector<double> loss;
};

struct TradeOff {
  int64_t bytes = 0;
  double cost = 0;
  double cosine = 0;        // predicted
  std::vector<int> choice;  // candidate by group
};

struct SearchResult {
  std::vector<Candidate> candidates;  // the last one is high precision
  std::vector<SearchGroup> groups;
  std::vector<TradeOff> curve;  // from the fewest bytes to high precision
  TradeOff chosen;
  double measured = 0;  // mean cosine of the choice
  double worst = 0;     // of any point
  bool within_budget = true;
  std::string not_resumed;  // why the file of an interrupted search was not used
};

// Mean and worst cosine of predictions under a recipe, over some of the calibration's points.
struct RecipeScore {
  double mean = 0, worst = 0;
};
RecipeScore score_recipe(Pipeline& model, const QuantizeRecipe& recipe,
                         const WeightQuantizer& quantizer, const Calibration& calibration,
                         std::span<const CalibrationPoint* const> points);
// Over all of them.
RecipeScore score_recipe(Pipeline& model, const QuantizeRecipe& recipe,
                         const WeightQuantizer& quantizer, const Calibration& calibration);

// So many points, of as many prompts and at as many different sigmas as there can be; 0: all.
std::vector<const CalibrationPoint*> spread_points(const std::vector<CalibrationPoint>& points,
                                                   int most);

// `base` gives what is kept and the inputs' scales; its own format and rules are not looked at.
// The model is left with the recipe that was chosen.
struct SearchInput {
  Pipeline& model;
  const Calibration& calibration;
  QuantizeRecipe base;
  std::vector<Candidate> candidates;  // high precision is added
  Minimize minimize = Minimize::kBoth;
  Budget budget;
  WeightQuantizer quantizer;  // empty: the plain one
  // Points that each group is measured on; 0: all of the calibration's. What is chosen is measured
  // on all of them.
  int points = 0;
  // Where this names a file, what was measured is kept there, and a search that was interrupted
  // goes on from it, as calibrate does. `fingerprint` tells model, calibration and rounding.
  std::filesystem::path partial;
  std::string fingerprint;
};
SearchResult search_formats(const SearchInput& input, const ProgressFn& progress);
// An Error where the budget's bytes hold no choice at all, which shapes tell before anything runs.
void check_budget(const Model& model, const QuantizeRecipe& base,
                  const std::vector<Candidate>& candidates, const Budget& budget);
// Chooses for another cosine from the losses that were measured, and measures the choice. False,
// and nothing is changed, where no choice that quantizes anything is nearer to it.
bool choose_again(const SearchInput& input, double cosine, SearchResult& result);

// The recipe of a choice: a rule for each linear.
QuantizeRecipe recipe_of(const QuantizeRecipe& base, const SearchResult& result,
                         const std::vector<int>& choice);

// Pure: every point of the lower hull, each step being the upgrade that buys most per byte.
std::vector<TradeOff> trade_off_curve(const std::vector<SearchGroup>& groups);

}  // namespace halftone
