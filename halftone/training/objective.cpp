#include "halftone/training/objective.h"

#include <cmath>

#include "halftone/base/error.h"
#include "halftone/base/gaussian.h"
#include "halftone/graph/ops.h"
#include "halftone/passes/rewrite.h"

namespace halftone {
namespace {

// min(SNR, gamma) as a weight of the clean picture's error, for what is predicted instead.
double min_snr_weight(Prediction prediction, double snr, double gamma) {
  const double limited = std::min(snr, gamma);
  switch (prediction) {
    case Prediction::kEpsilon:
      return snr > 0 ? limited / snr : 1;
    case Prediction::kV:
      return limited / (snr + 1);
    default:
      return limited;
  }
}

}  // namespace

Objective::Objective(const SchedulerConfig& scheduler, const SigmaDraw& how, double min_snr)
    : scheduler_(scheduler), how_(how), min_snr_(min_snr) {
  if (scheduler.prediction != Prediction::kVelocity) table_ = noise_table(scheduler);
}

Noising Objective::draw(PhiloxKey key) const {
  return table_ ? draw_timestep(key) : draw_velocity(key);
}

Noising Objective::draw_velocity(PhiloxKey key) const {
  const double z = gaussian_pair(key, 0).first;
  const double u = 1 / (1 + std::exp(-(how_.mean + how_.deviation * z)));
  Noising drawn;
  drawn.sigma = how_.shift * u / (1 + (how_.shift - 1) * u);
  drawn.timestep = drawn.sigma * scheduler_.flow_timesteps;
  drawn.latents = static_cast<float>(1 - drawn.sigma);
  drawn.noise = static_cast<float>(drawn.sigma);
  drawn.target_latents = -1;
  drawn.target_noise = 1;
  return drawn;
}

Noising Objective::draw_timestep(PhiloxKey key) const {
  const uint64_t at = (uint64_t{philox_word(key, 0)} * kTrainSteps) >> 32;
  const double squared = table_->alphas[at];
  const double signal = std::sqrt(squared), level = std::sqrt(1 - squared);
  Noising drawn;
  drawn.timestep = static_cast<double>(at);
  drawn.sigma = table_->sigmas[at];
  drawn.latents = static_cast<float>(signal);
  drawn.noise = static_cast<float>(level);
  switch (scheduler_.prediction) {
    case Prediction::kEpsilon:
      drawn.target_noise = 1;
      break;
    case Prediction::kV:
      drawn.target_noise = static_cast<float>(signal);
      drawn.target_latents = static_cast<float>(-level);
      break;
    default:
      drawn.target_latents = 1;
      break;
  }
  if (min_snr_ > 0) {
    drawn.weight = static_cast<float>(
        min_snr_weight(scheduler_.prediction, squared / (1 - squared), min_snr_));
  }
  return drawn;
}

std::shared_ptr<Graph> add_noising(const Graph& graph, bool target) {
  const Value latents = graph.inputs().at("latents");
  const int64_t rows = latents.dim(0);
  std::vector<int64_t> dims(static_cast<size_t>(latents.rank()), 1);
  dims[0] = rows;
  std::optional<Value> taught;
  auto out = rebuild(graph, [&](Graph& to, std::vector<Value>& at) {
    const Value clean = at[latents.id()];
    const Value factors = to.input("noising", {{rows, 4}, DType::kF32, {}});
    const Value keys = to.input("noise_keys", {{rows, 4}, DType::kI32, {}});
    const Value noise = gaussian(keys, clean.shape());
    const auto combined = [&](int64_t first) {
      const auto factor = [&](int64_t column) {
        return reshape(slice(factors, 1, column, column + 1), Shape(dims));
      };
      return clean * factor(first) + noise * factor(first + 1);
    };
    at[latents.id()] = combined(0);
    if (target) taught = combined(2);
    for (const Node& node : graph.nodes()) {
      const auto region = to.enter_region(node.region);
      std::vector<Value> inputs;
      for (const int id : node.inputs) inputs.push_back(at[id]);
      const auto values = copy_node(to, graph, node, inputs);
      for (size_t i = 0; i < values.size(); ++i) at[node.outputs[i]] = values[i];
    }
  });
  if (taught) out->output("target", *taught);
  return out;
}

}  // namespace halftone
