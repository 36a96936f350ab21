// Models and adapters as clients see them.
#include "halftone/base/error.h"
#include "halftone/server/requests.h"
#include "halftone/server/shelf.h"

namespace halftone {
namespace {

using nlohmann::ordered_json;

ordered_json precision_json(const std::string& name, std::string_view support,
                            const std::string& why) {
  return {{"name", name}, {"support", support}, {"why", why}};
}

ordered_json format_json(const DeviceInfo& device, const Format& format) {
  const FormatSupport support = format_support(device, format);
  return precision_json(std::string(format.name), to_string(support.support),
                        std::string(support.why));
}

// What can be trained of a model.
ordered_json modes_json(const std::string& stored) {
  const std::string why =
      stored.empty() ? "" : "its weights are stored as " + stored + ": only an adapter can be";
  const char* const support = stored.empty() ? "native" : "unavailable";
  return {precision_json("lora", "native", ""), precision_json("full", support, why),
          precision_json("qat", support, why)};
}

// The name of the scheduler that a model's own configuration means; empty where none is like it.
std::string scheduler_name(const SchedulerConfig& own) {
  for (const SchedulerChoice& choice : scheduler_choices()) {
    const bool flow = own.prediction == Prediction::kVelocity;
    if (!(flow ? choice.flow : choice.diffusion)) continue;
    const SchedulerConfig named = with_scheduler(own, choice.name);
    const bool same = named.kind == own.kind && named.stochastic == own.stochastic &&
                      named.sigma_spacing == own.sigma_spacing &&
                      named.solver_order == own.solver_order;
    if (same) return std::string(choice.name);
  }
  return "";
}

}  // namespace

std::string ModelOnShelf::automatic(const DeviceInfo& device) const {
  if (!stored.empty()) return stored_is_chosen ? stored : "bf16";
  return device.device.kind == DeviceKind::kCpu ? "fp32" : "bf16";
}

ordered_json certificate_json(const std::optional<Certificate>& c) {
  if (!c) return nullptr;
  return {{"precision", c->precision},
          {"reference", c->reference},
          {"velocity_cosine_mean", c->velocity_cosine.mean},
          {"velocity_cosine_worst", c->velocity_cosine.worst},
          {"ssim_mean", c->ssim.mean},
          {"prompts", c->prompts},
          {"pictures", c->pictures}};
}

ordered_json Shelf::to_json(const ModelOnShelf& model,
                            const std::vector<std::string>& loaded) const {
  ordered_json out = {{"id", model.id}, {"title", model.id}, {"media", "image"}};
  out["error"] = model.error;
  out["loaded"] = loaded;
  out["bytes"] = model.bytes;
  if (model.parts == nullptr) return out;
  const ModelParts& parts = *model.parts;
  const Sampling& usual = parts.recommended;
  out["family"] = parts.family->name;
  out["family_title"] = parts.family->title;
  const std::string automatic = model.automatic(device_);
  ordered_json precisions = ordered_json::array();
  precisions.push_back(precision_json("auto", "native", automatic + " here"));
  ordered_json formats = ordered_json::array(), backward = ordered_json::array();
  for (const Format& format : all_formats()) {
    const std::string name(format.name);
    ordered_json row = format_json(device_, format);
    const bool stored_otherwise = !model.stored.empty() && format.quantized();
    if (stored_otherwise && name != model.stored) {
      row = precision_json(name, "unavailable", "its weights are stored as " + model.stored);
    }
    formats.push_back(row);
    precisions.push_back(std::move(row));
  }
  out["precisions"] = precisions;
  std::string why = model.stored_why;
  if (why.empty())
    why = fmt::format("what {} computes in where nothing else is known", device_.name);
  out["recommended"] = {
      {"precision", automatic}, {"why", why}, {"certificate", certificate_json(model.certificate)}};
  out["stored"] = model.stored;
  const bool guided = usual.guidance_rule != GuidanceRule::kNone;
  out["defaults"] = {{"width", usual.width}, {"height", usual.height},
                     {"steps", usual.steps}, {"guidance", usual.guidance},
                     {"negative", guided},   {"multiple", parts.size_multiple()}};
  if (usual.embedded_guidance) out["defaults"]["true_cfg"] = 0;  // the network reads guidance
  if (parts.denoiser->skippable_blocks() > 0) out["defaults"]["skip_layers"] = "";
  if (parts.denoiser->reads_sizes()) out["defaults"]["original_size"] = "";
  ordered_json schedulers = ordered_json::array();
  const bool flow = usual.scheduler.prediction == Prediction::kVelocity;
  for (const SchedulerChoice& choice : scheduler_choices()) {
    if (flow ? choice.flow : choice.diffusion) schedulers.push_back(choice.name);
  }
  out["schedulers"] = schedulers;
  out["default_scheduler"] = scheduler_name(usual.scheduler);
  out["memory"] = {{"weights", model.bytes}};
  out["supports_compile"] = true;
  const bool trainable = model.stored.empty();
  backward.push_back(format_json(device_, formats::bf16));
  const FormatSupport fp8 = format_support(device_, formats::fp8);
  backward.push_back(precision_json("fp8", to_string(fp8.support),
                                    "for a base in 8 or 4 bits; " + std::string(fp8.why)));
  out["trains"] = {
      {"possible", true},
      {"why", trainable ? "" : "an adapter only: the weights are stored as " + model.stored},
      {"modes", modes_json(model.stored)},
      {"resolution", std::min(usual.width, usual.height)},
      {"precisions", formats},
      {"backward", backward},
      {"compile", {{"possible", true}, {"why", ""}}}};
  const std::string whole = why_not_quantized(model);
  out["quantizes"] = {{"possible", whole.empty()}, {"why", whole}};
  return out;
}

ordered_json Shelf::to_json(const AdapterOnShelf& adapter) {
  ordered_json out = {{"name", adapter.name},           {"bytes", adapter.bytes},
                      {"changed", adapter.changed},     {"editable", is_own(adapter)},
                      {"error", adapter.error},         {"base_precision", adapter.base_precision},
                      {"base_hash", adapter.base_hash}, {"trigger", adapter.trigger},
                      {"steps", adapter.steps}};
  ordered_json fits = ordered_json::array(), partly = ordered_json::array(),
               unfit = ordered_json::array();
  for (const auto& model : models()) {
    if (model->parts == nullptr) continue;
    const AdapterFit fit = this->fit(adapter, *model);
    if (!fit.why_not.empty()) {
      unfit.push_back({{"model", model->id}, {"why", fit.why_not}});
      continue;
    }
    fits.push_back(model->id);
    if (fit.unmatched.empty()) continue;
    partly.push_back({{"model", model->id},
                      {"unmatched", fit.unmatched.size()},
                      {"first", printable(fit.unmatched[0])}});
  }
  out["fits"] = fits;
  out["partly"] = partly;
  out["unfit"] = unfit;
  return out;
}

}  // namespace halftone
