// Which linears are quantized as several products, each of a part of the input (cut_inputs.h): what
// can be, what a recipe says, and where it is nearer to the original.
#pragma once

#include <string>
#include <vector>

#include "halftone/quantize/calibrate_passes.h"
#include "halftone/quantize/recipe_file.h"

namespace halftone {

// What the model can have in parts and the recipe quantizes, in parts as in one.
InputCuts splittable(const Model& model, const QuantizeRecipe& recipe);

// What a recipe's [[cut]] names; a pattern that matches nothing is an Error of `where`.
std::vector<std::string> recipe_cuts(const Model& model, const RecipeFile& recipe,
                                     const std::string& where);

struct SplitMeasure {
  Pipeline& original;  // neither compiled nor cut, in full precision
  Pipeline &whole, &cut;
  const QuantizeRecipe& base;  // what is kept; its format is that of what is measured
  SchedulerConfig scheduler;
  CalibrationOptions how;  // the prompts that are held out are run, or else all
  int points = 0;          // predictions for each linear; 0: all
};
// Each linear alone in the format, as one product and in parts: those that are nearer to the
// original's predictions in parts.
std::vector<std::string> better_in_parts(const SplitMeasure& measure, const InputCuts& cuts,
                                         const StageFn& stage);

}  // namespace halftone
