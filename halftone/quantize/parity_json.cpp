#include <nlohmann/json.hpp>

#include "halftone/base/text.h"
#include "halftone/quantize/parity_report.h"

namespace halftone {
namespace {

using nlohmann::ordered_json;

ordered_json to_json(const Spread& s) {
  return {{"mean", s.mean}, {"median", s.median}, {"tail_5", s.tail}, {"worst", s.worst}};
}

ordered_json to_json(const std::vector<Spread>& spreads) {
  ordered_json list = ordered_json::array();
  for (const Spread& s : spreads) list.push_back(to_json(s));
  return list;
}

ordered_json to_json(const ParityResult& r) {
  ordered_json layers = ordered_json::object(), cases = ordered_json::array();
  ordered_json texts = ordered_json::array();
  for (const TextParity& t : r.texts) {
    texts.push_back({{"encoder", t.encoder}, {"output", t.output}, {"cosine", to_json(t.cosine)}});
  }
  for (const auto& [name, error] : r.layer_error) layers[name] = error;
  for (const auto& c : r.cases) {
    cases.push_back({{"prompt", c.prompt},
                     {"seed", c.seed},
                     {"worst_velocity_cosine", c.velocity_cosine},
                     {"latent_cosine", c.latent_cosine},
                     {"ssim", c.ssim},
                     {"psnr", c.psnr}});
    if (r.cache > 0) cases.back()["reused_steps"] = c.reused;
  }
  ordered_json out = {{"precision", r.name},
                      {"how", r.how},
                      {"weight_bytes", r.weight_bytes},
                      {"seconds_per_step", r.seconds_per_step},
                      {"velocity_cosine", to_json(r.velocity_cosine_all)},
                      {"velocity_relative_error", to_json(r.velocity_error_all)},
                      {"velocity_cosine_by_step", to_json(r.velocity_cosine)},
                      {"velocity_relative_error_by_step", to_json(r.velocity_error)},
                      {"single_step_latent_cosine_by_step", to_json(r.step_cosine)},
                      {"rollout_cosine_by_step", to_json(r.rollout_cosine)},
                      {"ssim", to_json(r.ssim)},
                      {"psnr", to_json(r.psnr)},
                      {"text_states", std::move(texts)},
                      {"layer_relative_error", std::move(layers)},
                      {"cases", std::move(cases)}};
  if (r.cache > 0)
    out["cache"] = {{"threshold", short_number(r.cache)}, {"reused_share", r.reused_share}};
  return out;
}

}  // namespace

ordered_json parity_json(const ParityReport& report) {
  ordered_json results = ordered_json::array();
  for (const ParityResult& r : report.results) results.push_back(to_json(r));
  return {{"model", report.model},
          {"model_hash", report.hash},
          {"halftone", report.version},
          {"device", report.device},
          {"fallbacks", report.fallbacks},
          {"reference", report.reference},
          {"reference_seconds_per_step", report.run.seconds_per_step},
          {"prompts", report.options.prompts},
          {"seeds", report.options.seeds},
          {"steps", report.options.steps},
          {"guidance", report.options.guidance},
          {"size", {report.options.width, report.options.height}},
          {"disturbance", report.options.disturbance},
          {"sigmas", report.run.sigmas},
          {"sampler", "flow-matching Euler; the rollout and the real sampler are the same"},
          {"results", std::move(results)}};
}

}  // namespace halftone
