#include "halftone/cli/quantize_report.h"

#include <fmt/format.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "halftone/base/error.h"
#include "halftone/base/text.h"

namespace halftone::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

struct Row {
  int weights = 0;
  int64_t before = 0, after = 0;
  double error = 0;
};
bool rounds_inputs(const QuantizeRecipe& recipe, const std::string& weight) {
  for (const auto& rule : recipe.rules) {
    if (glob_match(rule.pattern, weight)) return rule.activations;
  }
  return recipe.activations;
}

std::map<std::string, Row> rows_of(const ModelQuantizeResult& r) {
  std::map<std::string, Row> rows;
  for (const auto& tensor : r.files.converted) {
    const auto choice = rounds_inputs(r.recipe, tensor.name);
    Row& row = rows[Candidate{*find_format(tensor.format), choice}.name()];
    ++row.weights;
    row.before += tensor.bytes_before;
    row.after += tensor.bytes_after;
    row.error += tensor.relative_error;
  }
  return rows;
}

void print_curve(const ModelQuantizeResult& r) {
  fmt::print("  trade-off on {} predictions, bf16 {}:\n", r.points,
             human_bytes(r.found->curve.back().bytes));
  fmt::print("  {:>12} {:>10}\n", "WEIGHTS", "COSINE");
  constexpr size_t kLines = 10;
  const size_t count = r.found->curve.size();
  size_t last = count;
  for (size_t line = 0; line < kLines; ++line) {
    const size_t i = line * (count - 1) / (kLines - 1);
    if (i == last) continue;
    last = i;
    fmt::print("  {:>12} {:>10.6f}\n", human_bytes(r.found->curve[i].bytes),
               r.found->curve[i].cosine);
  }
  fmt::print("  {:>12} {:>10.6f}  chosen; measured {:.6f}, worst {:.6f}\n",
             human_bytes(r.found->chosen.bytes), r.found->chosen.cosine, r.found->measured,
             r.found->worst);
}

}  // namespace

ordered_json to_json(const ModelQuantizeResult& r) {
  ordered_json out;
  out["model"] = r.model;
  out["output"] = r.output;
  out["model_hash"] = r.hash;
  out["seconds"] = r.seconds;
  out["file_bytes"] = {{"before", r.files.file_bytes_before}, {"after", r.files.file_bytes_after}};
  for (const auto& [name, row] : rows_of(r)) {
    out["formats"][name] = {{"weights", row.weights},
                            {"bytes_before", row.before},
                            {"bytes_after", row.after},
                            {"mean_error", row.error / row.weights}};
  }
  out["kept"] = ordered_json::array();
  for (const auto& kept : r.kept) {
    out["kept"].push_back({{"name", kept.weight}, {"reason", kept.reason}});
  }
  out["not_finite"] = r.not_finite;
  out["split_inputs"] = r.cuts;
  if (r.found) {
    out["search"]["measured_cosine"] = r.found->measured;
    out["search"]["predicted_cosine"] = r.found->chosen.cosine;
    out["search"]["bytes"] = r.found->chosen.bytes;
    out["search"]["within_budget"] = r.found->within_budget;
    for (const TradeOff& point : r.found->curve) {
      out["search"]["curve"].push_back({{"bytes", point.bytes}, {"cosine", point.cosine}});
    }
    for (const SearchGroup& group : r.found->groups) {
      ordered_json loss;
      for (size_t i = 0; i < r.found->candidates.size(); ++i) {
        loss[r.found->candidates[i].name()] = group.loss[i];
      }
      out["search"]["groups"].push_back({{"weights", group.weights}, {"loss", loss}});
    }
  }
  if (r.budget) {
    out["budget"] = {{"asked", r.budget->asked},
                     {"reached", r.budget->reached},
                     {"met", r.budget->met()},
                     {"measured_by", r.budget->certified ? "certificate" : "search"}};
  }
  if (!r.uncertified.empty()) out["uncertified"] = r.uncertified;
  if (r.certificate) out["certificate"] = nlohmann::json::parse(halftone::to_json(*r.certificate));
  return out;
}

void print_text(const ModelQuantizeResult& r) {
  fmt::print("{} -> {} in {}\n", printable(r.model, 1000), printable(r.output, 1000),
             human_seconds(r.seconds));
  if (r.found) print_curve(r);
  fmt::print("  {:<21} {:>7} {:>12} {:>12} {:>6} {:>11}\n", "", "LINEARS", "BEFORE", "AFTER",
             "RATIO", "ERROR MEAN");
  for (const auto& [name, row] : rows_of(r)) {
    fmt::print("  {:<21} {:>7} {:>12} {:>12} {:>6.3f} {:>11.3e}\n", name, row.weights,
               human_bytes(row.before), human_bytes(row.after),
               static_cast<double>(row.after) / static_cast<double>(row.before),
               row.error / row.weights);
  }
  fmt::print("  {:<21} {:>7} {:>12} {:>12} {:>6.3f}\n", "all of the file", "",
             human_bytes(r.files.file_bytes_before), human_bytes(r.files.file_bytes_after),
             static_cast<double>(r.files.file_bytes_after) /
                 static_cast<double>(r.files.file_bytes_before));
  if (!r.cuts.empty()) {
    fmt::print("  split inputs: {} linears are made of several products\n", r.cuts.size());
  }
  for (const std::string& weight : r.not_finite) {
    fmt::print("  kept: {}: its input is not finite\n", printable(weight));
  }
  if (r.certificate) {
    const Certificate& c = *r.certificate;
    fmt::print(
        "  certificate: velocity cosine {:.6f} (5% tail {:.6f}, worst {:.6f}), SSIM {:.4f}, "
        "of {} pictures against {}, of {} prompts {} that neither calibration nor search saw\n",
        c.velocity_cosine.mean, c.velocity_cosine.tail, c.velocity_cosine.worst, c.ssim.mean,
        c.pictures, c.reference, c.prompts, c.prompts_from == "own" ? "of our own" : "of yours");
  }
  if (!r.uncertified.empty()) fmt::print("  no certificate: {}\n", r.uncertified);
  if (r.budget) fmt::print("  {}\n", to_text(*r.budget));
  fmt::print("  recipe: {}\n", (fs::path(r.output) / "recipe.toml").string());
}

}  // namespace halftone::cli
