#include "halftone/cli/train_events.h"

#include <chrono>
#include <nlohmann/json.hpp>

#include "halftone/cli/model_options.h"
#include "halftone/engine/choice_json.h"

namespace halftone::cli {
namespace {

using nlohmann::ordered_json;

ordered_json named(const char* event) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return {{"event", event}, {"time", std::chrono::duration<double>(now).count()}};
}

// Of gradients of several processes.
void add_sums(ordered_json& out, const std::optional<SumSeconds>& sums) {
  if (!sums) return;
  out["sum_s"] = sums->summing;
  out["wait_s"] = sums->waited;
}

ordered_json fields(const Preparing& e) {
  ordered_json out = named("preparing");
  out.update({{"stage", e.stage}, {"done", e.done}, {"total", e.total}});
  return out;
}

ordered_json fields(const TrainModelLoaded& e) {
  ordered_json out = named("model_loaded");
  out["model"] = e.path;
  out["family"] = e.family;
  out["precision"] = choice_json(e.precision);
  out["backward"] = choice_json(e.backward);
  out["compile"] = choice_json(e.compile);
  out["device"] = choice_json(e.device);
  out["converted"] = e.formats;
  out["kept"] = ordered_json::array();
  for (const auto& [weight, why] : e.kept) {
    out["kept"].push_back({{"weight", weight}, {"reason", why}});
  }
  out["mode"] = e.mode;
  out[e.mode == "lora" ? "adapters" : "weights"] = e.parts;
  out["parameters"] = e.parameters;
  out["planned_bytes"] = e.planned_bytes;
  if (e.processes > 1) {
    out["processes"] = e.processes;
    out["sums"] = choice_json(e.sums);
  }
  return out;
}

ordered_json fields(const TrainProgress& e) {
  ordered_json out = named("progress");
  out["step"] = e.step;
  out["total"] = e.total;
  out["loss"] = e.loss;
  out["avg_loss"] = e.average_loss;
  out["lr"] = e.learning_rate;
  out["grad_norm"] = e.gradient_norm;
  out["samples_per_s"] = e.samples_per_second > 0 ? ordered_json(e.samples_per_second) : nullptr;
  out["peak_bytes"] = e.peak_bytes;
  out["eta"] = e.samples_per_second > 0 ? ordered_json(e.seconds_left) : nullptr;
  add_sums(out, e.sums);
  return out;
}

ordered_json fields(const TrainWarning& e) {
  ordered_json out = named("warning");
  out["message"] = e.message;
  return out;
}

ordered_json fields(const CheckpointSaved& e) {
  ordered_json out = named("checkpoint");
  out.update({{"step", e.step}, {"path", e.path}});
  return out;
}

ordered_json fields(const SampleMade& e) {
  ordered_json out = named("sample");
  out.update({{"step", e.step}, {"path", e.path}, {"prompt", e.prompt}});
  return out;
}

ordered_json fields(const HeldOutLoss& e) {
  ordered_json out = named("held_out");
  out.update({{"step", e.step}, {"loss", e.loss}});
  return out;
}

ordered_json fields(const GradientsChecked& e) {
  ordered_json out = named("gradients");
  out.update({{"mean_cosine", e.mean}, {"worst_cosine", e.worst}, {"worst", e.worst_weight}});
  return out;
}

ordered_json fields(const TrainComplete& e) {
  ordered_json out = named("complete");
  out.update({{"path", e.path}, {"step", e.step}, {"loss", e.loss}, {"seconds", e.seconds}});
  if (!e.report.empty()) out["report"] = e.report;
  add_sums(out, e.sums);
  return out;
}

}  // namespace

ordered_json event_json(const TrainEvent& event) {
  return std::visit([](const auto& e) { return fields(e); }, event);
}

ordered_json event_json(const Error& error) {
  ordered_json out = named("error");
  out["message"] = error.what();
  out["cancelled"] = error.code() == ErrorCode::kCancelled;
  return out;
}

}  // namespace halftone::cli
