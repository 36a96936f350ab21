#include "halftone/quantize/split_inputs.h"

#include <algorithm>

#include "halftone/base/error.h"
#include "halftone/base/text.h"
#include "halftone/quantize/search.h"

namespace halftone {

InputCuts splittable(const Model& model, const QuantizeRecipe& recipe) {
  InputCuts cuts = model.cuttable();
  const auto planned = model.plan_recipe(recipe).converted;
  std::erase_if(cuts, [&](const auto& cut) {
    const auto found = std::ranges::find_if(
        planned, [&](const auto& linear) { return linear.weight == cut.first; });
    return found == planned.end() || std::ranges::any_of(cut.second, [&](int64_t width) {
             return found->format.span == ScaleSpan::kBlock && width % found->format.block != 0;
           });
  });
  return cuts;
}

std::vector<std::string> recipe_cuts(const Model& model, const RecipeFile& recipe,
                                     const std::string& where) {
  std::vector<std::string> found;
  const InputCuts cuts = model.cuttable();
  for (const std::string& pattern : recipe.cuts) {
    const size_t before = found.size();
    for (const auto& [weight, widths] : cuts) {
      if (glob_match(pattern, weight)) found.push_back(weight);
    }
    if (found.size() > before) continue;
    throw Error(ErrorCode::kInvalidInput, where, "[[cut]] '{}' matches no weight that can be cut",
                printable(pattern));
  }
  return found;
}

std::vector<std::string> better_in_parts(const SplitMeasure& measure, const InputCuts& cuts,
                                         const StageFn& stage) {
  CalibrationOptions how = measure.how;
  if (how.held_out.empty()) how.held_out = how.prompts;
  how.prompts.clear();
  how.moments = false;
  how.points_per_prompt = 1;
  const Calibration seen =
      calibrate(measure.original, measure.scheduler, how, {}, "", stage("predicting"));
  const auto points = spread_points(seen.points, measure.points);
  const auto score = [&](Pipeline& model, const std::vector<std::string>& weights) {
    QuantizeRecipe alone = measure.base;
    alone.rules.clear();
    alone.format = formats::bf16;
    for (const std::string& weight : weights) {
      alone.rules.push_back({weight, measure.base.format, true});
    }
    return score_recipe(model, alone, {}, seen, points).mean;
  };
  const ProgressFn progress = stage("measuring split inputs");
  std::vector<std::string> better;
  int64_t done = 0;
  for (const auto& [weight, widths] : cuts) {
    progress({weight, done++, static_cast<int64_t>(cuts.size())});
    std::vector<std::string> parts;
    for (size_t i = 0; i < widths.size(); ++i) parts.push_back(cut_name(weight, i));
    if (score(measure.cut, parts) > score(measure.whole, {weight})) better.push_back(weight);
  }
  return better;
}

}  // namespace halftone
