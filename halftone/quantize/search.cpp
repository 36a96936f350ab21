#include "halftone/quantize/search.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "halftone/base/error.h"
#include "halftone/base/files.h"
#include "halftone/base/text.h"
#include "halftone/io/model_hash.h"
#include "halftone/quantize/calibration_file.h"
#include "halftone/quantize/metrics.h"
#include "halftone/tensor/quantized_tensor.h"

namespace halftone {
namespace {

int64_t bytes_in(const Format& format, const Shape& shape) {
  if (!format.quantized()) return shape.numel() * 2;
  return quantized_layout(format, shape[0], shape[1], 1).bytes;
}

// Of bf16's, where tensor cores multiply in the format: twice the operations at 8 bits, four times
// at 4.
double time_of(const Candidate& candidate) {
  if (!candidate.format.quantized() || !candidate.activations) return 1;
  return candidate.format.element_bits() / 16.0;
}

bool takes(const Format& format, const Shape& shape) {
  return format.span != ScaleSpan::kBlock || shape[1] % format.block == 0;
}

// Linears that a format is chosen for, as far as shapes and the recipe tell.
std::vector<LinearInfo> linears_of(const Model& model, const QuantizeRecipe& base,
                                   const std::vector<Candidate>& candidates) {
  std::vector<LinearInfo> found;
  for (LinearInfo& linear : model.linears()) {
    const auto matches = [&](const std::string& p) { return glob_match(p, linear.weight); };
    const auto& include = base.include;
    if (!include.empty() && std::none_of(include.begin(), include.end(), matches)) continue;
    const auto keeps = [&](const auto& keep) { return glob_match(keep.pattern, linear.weight); };
    if (std::any_of(base.keep.begin(), base.keep.end(), keeps)) continue;
    const bool fits = std::all_of(candidates.begin(), candidates.end(), [&](const Candidate& c) {
      return takes(c.format, linear.shape);
    });
    if (fits) found.push_back(std::move(linear));
  }
  return found;
}

std::vector<SearchGroup> groups_of(const SearchInput& input,
                                   const std::vector<Candidate>& candidates) {
  std::map<int, SearchGroup> groups;
  for (const LinearInfo& linear : linears_of(input.model.model(), input.base, candidates)) {
    const auto seen = input.calibration.inputs.find(linear.weight);
    if (seen != input.calibration.inputs.end() && !seen->second.finite()) continue;  // kept
    SearchGroup& group = groups[linear.group];
    group.weights.push_back(linear.weight);
    group.bytes.resize(candidates.size(), 0);
    group.cost.resize(candidates.size(), 0);
    for (size_t i = 0; i < candidates.size(); ++i) {
      const int64_t bytes = bytes_in(candidates[i].format, linear.shape);
      const double time = time_of(candidates[i]) * static_cast<double>(linear.shape.numel()) * 2;
      group.bytes[i] += bytes;
      constexpr double kTie = 1e-3;  // of what is not minimized, so that less of it is preferred
      const bool by_bytes = input.minimize != Minimize::kTime,
                 by_time = input.minimize != Minimize::kBytes;
      group.cost[i] +=
          (by_bytes ? 1 : kTie) * static_cast<double>(bytes) + (by_time ? 1 : kTie) * time;
    }
  }
  std::vector<SearchGroup> found;
  for (auto& [id, group] : groups) {
    group.loss.assign(candidates.size(), 0.0);
    found.push_back(std::move(group));
  }
  return found;
}

TradeOff point_of(const std::vector<SearchGroup>& groups, std::vector<int> choice) {
  TradeOff point{0, 0, 1, std::move(choice)};
  for (size_t g = 0; g < groups.size(); ++g) {
    point.bytes += groups[g].bytes[point.choice[g]];
    point.cost += groups[g].cost[point.choice[g]];
    point.cosine -= groups[g].loss[point.choice[g]];
  }
  return point;
}

[[noreturn]] void refuse_bytes(int64_t bytes, int64_t least) {
  throw Error(ErrorCode::kUsage, "budget", "{} bytes are fewer than the least, {}", bytes, least);
}

// The first point that keeps the budget when losses are `factor` times what was predicted.
const TradeOff* pick(const std::vector<TradeOff>& curve, const Budget& budget, double factor) {
  if (budget.bytes) {
    const TradeOff* best = nullptr;
    for (const TradeOff& point : curve) {
      if (point.bytes <= *budget.bytes && (best == nullptr || point.cosine > best->cosine)) {
        best = &point;
      }
    }
    return best;
  }
  if (!budget.cosine) return curve.data();
  for (const TradeOff& point : curve) {
    if (1 - factor * (1 - point.cosine) >= *budget.cosine) return &point;
  }
  return nullptr;
}

// Measured as a whole; where losses do not add up as predicted, chosen again with what was found.
// False where only high precision is left to choose.
bool choose(const SearchInput& input, const Budget& budget, SearchResult& result) {
  const int high = static_cast<int>(result.candidates.size()) - 1;
  double factor = 1;
  constexpr int kMostRounds = 6;
  for (int round = 0; round < kMostRounds; ++round) {
    const TradeOff* point = pick(result.curve, budget, factor);
    if (point == nullptr) {
      if (budget.bytes) refuse_bytes(*budget.bytes, result.curve[0].bytes);
      point = &result.curve.back();
    }
    const bool any = std::any_of(point->choice.begin(), point->choice.end(),
                                 [&](int candidate) { return candidate != high; });
    if (!any) return false;
    result.chosen = *point;
    const RecipeScore score =
        score_recipe(input.model, recipe_of(input.base, result, point->choice), input.quantizer,
                     input.calibration);
    result.measured = score.mean;
    result.worst = score.worst;
    if (!budget.cosine || score.mean >= *budget.cosine) break;
    const double predicted = std::max(1 - point->cosine, 1e-12);
    factor = std::max(factor * 1.05, (1 - score.mean) / predicted);
  }
  result.within_budget = !budget.cosine || result.measured >= *budget.cosine;
  return true;
}

// Losses of groups by candidate, without the last one, which is high precision.
std::vector<double> losses_of(const SearchResult& result) {
  std::vector<double> losses;
  for (const SearchGroup& group : result.groups) {
    losses.insert(losses.end(), group.loss.begin(), group.loss.end() - 1);
  }
  return losses;
}

// What the losses are of.
std::string fingerprint_of(const SearchInput& input, const SearchResult& result) {
  std::string text = fmt::format("{} {}", input.fingerprint, input.points);
  for (const Candidate& candidate : result.candidates) text += "\n" + candidate.name();
  for (const SearchGroup& group : result.groups) {
    text += fmt::format("\n{}", fmt::join(group.weights, " "));
  }
  return text_hash(text);
}

// Every group alone in every candidate; what an interrupted search has measured is not run again.
void measure_groups(const SearchInput& input, const ProgressFn& progress, SearchResult& result) {
  const size_t groups = result.groups.size(), candidates = input.candidates.size();
  const int high = static_cast<int>(candidates);
  const auto points = spread_points(input.calibration.points, input.points);
  const std::string fingerprint = fingerprint_of(input, result);
  std::vector<double> known;
  if (!input.partial.empty() && path_exists(input.partial)) {
    try {
      known = read_losses(input.partial, {fingerprint, groups * candidates});
    } catch (const Error& error) {
      result.not_resumed = error.what();
    }
  }
  for (size_t g = 0; g < groups; ++g) {
    for (size_t i = 0; i < candidates; ++i) {
      double& loss = result.groups[g].loss[i];
      const size_t index = g * candidates + i;
      if (index < known.size()) {
        loss = known[index];
        continue;
      }
      progress({"measuring layers", static_cast<int64_t>(index),
                static_cast<int64_t>(groups * candidates)});
      std::vector<int> alone(groups, high);
      alone[g] = static_cast<int>(i);
      const QuantizeRecipe recipe = recipe_of(input.base, result, alone);
      const double mean =
          score_recipe(input.model, recipe, input.quantizer, input.calibration, points).mean;
      loss = std::isfinite(mean) ? std::max(0.0, 1 - mean) : kNoNumber;
      if (input.partial.empty()) continue;
      std::vector<double> measured = losses_of(result);
      measured.resize(index + 1);
      write_losses(input.partial, fingerprint, measured);
    }
  }
}

}  // namespace

std::string to_string(Minimize minimize) {
  return minimize == Minimize::kBytes ? "bytes" : minimize == Minimize::kTime ? "time" : "both";
}

std::string Candidate::name() const {
  const bool weights = format.quantized() && !activations;
  return std::string(format.name) + (weights ? " weights" : "");
}

RecipeScore score_recipe(Pipeline& model, const QuantizeRecipe& recipe,
                         const WeightQuantizer& quantizer, const Calibration& calibration,
                         std::span<const CalibrationPoint* const> points) {
  model.set_recipe(recipe, quantizer);
  RecipeScore score{0, 1};
  for (const CalibrationPoint* p : points) {
    const Tensor v =
        model.predict(p->latents, calibration.steps[p->step], calibration.conditions[p->prompt]);
    const double c = cosine(v.as<float>(), p->velocity.as<float>());
    score.mean += c / static_cast<double>(points.size());
    score.worst = std::min(score.worst, c);
  }
  return score;
}

RecipeScore score_recipe(Pipeline& model, const QuantizeRecipe& recipe,
                         const WeightQuantizer& quantizer, const Calibration& calibration) {
  return score_recipe(model, recipe, quantizer, calibration, spread_points(calibration.points, 0));
}

std::vector<const CalibrationPoint*> spread_points(const std::vector<CalibrationPoint>& points,
                                                   int most) {
  // Turn by turn: in each every prompt gives one, at a sigma further on than the one before it.
  struct Ranked {
    size_t turn, prompt;
    const CalibrationPoint* point;
  };
  std::map<int, std::vector<const CalibrationPoint*>> by_prompt;
  for (const CalibrationPoint& point : points) by_prompt[point.prompt].push_back(&point);
  std::vector<Ranked> ranked;
  size_t prompt = 0;
  for (const auto& [id, own] : by_prompt) {
    for (size_t i = 0; i < own.size(); ++i) {
      ranked.push_back({(i + own.size() - prompt % own.size()) % own.size(), prompt, own[i]});
    }
    ++prompt;
  }
  std::vector<const CalibrationPoint*> chosen;
  if (most > 0 && static_cast<size_t>(most) < points.size()) {
    std::sort(ranked.begin(), ranked.end(), [](const Ranked& a, const Ranked& b) {
      return std::pair(a.turn, a.prompt) < std::pair(b.turn, b.prompt);
    });
    ranked.resize(static_cast<size_t>(most));
  }
  for (const Ranked& r : ranked) chosen.push_back(r.point);
  std::sort(chosen.begin(), chosen.end());  // as they lie
  return chosen;
}

std::vector<TradeOff> trade_off_curve(const std::vector<SearchGroup>& groups) {
  // Each group's candidates by cost, without those that cost more and are no better.
  std::vector<std::vector<int>> ladders;
  std::vector<int> choice;
  for (const SearchGroup& group : groups) {
    std::vector<int> order(group.cost.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int>(i);
    std::sort(order.begin(), order.end(), [&](int a, int b) {
      return group.cost[a] != group.cost[b] ? group.cost[a] < group.cost[b]
                                            : group.loss[a] < group.loss[b];
    });
    std::vector<int> ladder;
    for (const int candidate : order) {
      if (ladder.empty() || group.loss[candidate] < group.loss[ladder.back()]) {
        ladder.push_back(candidate);
      }
    }
    choice.push_back(ladder[0]);
    ladders.push_back(std::move(ladder));
  }
  std::vector<TradeOff> curve = {point_of(groups, choice)};
  while (true) {
    double best = -1;
    size_t best_group = 0;
    int best_candidate = 0;
    for (size_t g = 0; g < groups.size(); ++g) {
      const double loss = groups[g].loss[choice[g]];
      const double cost = groups[g].cost[choice[g]];
      for (const int candidate : ladders[g]) {
        if (groups[g].cost[candidate] <= cost) continue;
        const double gain = (loss - groups[g].loss[candidate]) / (groups[g].cost[candidate] - cost);
        if (gain > best) {
          best = gain;
          best_group = g;
          best_candidate = candidate;
        }
      }
    }
    if (best < 0) return curve;
    choice[best_group] = best_candidate;
    curve.push_back(point_of(groups, choice));
  }
}

QuantizeRecipe recipe_of(const QuantizeRecipe& base, const SearchResult& result,
                         const std::vector<int>& choice) {
  QuantizeRecipe recipe = base;
  recipe.format = formats::bf16;
  recipe.rules.clear();
  for (size_t g = 0; g < result.groups.size(); ++g) {
    const Candidate& candidate = result.candidates[choice[g]];
    for (const std::string& weight : result.groups[g].weights) {
      recipe.rules.push_back({weight, candidate.format, candidate.activations});
    }
  }
  return recipe;
}

SearchResult search_formats(const SearchInput& input, const ProgressFn& progress) {
  SearchResult result;
  result.candidates = input.candidates;
  result.candidates.push_back({formats::bf16, false});
  result.groups = groups_of(input, result.candidates);
  if (result.groups.empty()) {
    throw Error(ErrorCode::kInvalidInput, "budget", "the model has no linear to choose for");
  }
  measure_groups(input, progress, result);
  result.curve = trade_off_curve(result.groups);
  if (!choose(input, input.budget, result)) {
    throw Error(ErrorCode::kUsage, "budget", "{} leaves every linear in high precision",
                input.budget.cosine ? fmt::format("a cosine of {}", *input.budget.cosine)
                                    : fmt::format("{} bytes", *input.budget.bytes));
  }
  return result;
}

void check_budget(const Model& model, const QuantizeRecipe& base,
                  const std::vector<Candidate>& candidates, const Budget& budget) {
  if (!budget.bytes) return;
  int64_t least = 0;
  for (const LinearInfo& linear : linears_of(model, base, candidates)) {
    int64_t bytes = bytes_in(formats::bf16, linear.shape);
    for (const Candidate& candidate : candidates) {
      bytes = std::min(bytes, bytes_in(candidate.format, linear.shape));
    }
    least += bytes;
  }
  if (*budget.bytes < least) refuse_bytes(*budget.bytes, least);
}

bool choose_again(const SearchInput& input, double cosine, SearchResult& result) {
  SearchResult next = result;
  if (!choose(input, {cosine, {}, false}, next) || next.chosen.choice == result.chosen.choice) {
    return false;
  }
  result = std::move(next);
  return true;
}

}  // namespace halftone
