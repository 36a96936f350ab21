#include "halftone/engine/sampler_graph.h"

#include <fmt/format.h>

#include "halftone/base/error.h"
#include "halftone/diffusion/schedule.h"

namespace halftone {

std::string memory_name(size_t index) { return fmt::format("memory.{}", index); }
std::string next_memory_name(size_t index) { return fmt::format("next.memory.{}", index); }

void add_sampler(Graph& graph, const SamplerGraph& sampler) {
  const int64_t jobs = sampler.jobs;
  const Value given = graph.inputs().at("latents");
  const auto first_rows = [&](Value x, int64_t from) {
    return x.dim(0) == jobs ? x : slice(x, 0, from, from + jobs);
  };
  const Value latents = first_rows(given, 0);
  const ValueType type = latents.type();
  // One number for each job, against its latents.
  std::vector<int64_t> dims(static_cast<size_t>(type.shape.rank()), 1);
  dims[0] = jobs;
  const Shape per_job(dims);

  const Value sample = graph.outputs().at("sample");
  Value prediction = first_rows(sample, 0);
  if (sampler.rule != GuidanceRule::kNone) {
    HT_ASSERT(sample.dim(0) == 2 * jobs);
    const Value strength = graph.input("guidance", {{jobs}, DType::kF32, {}});
    prediction =
        guided(sampler.rule, prediction, first_rows(sample, jobs), reshape(strength, per_job));
  }
  if (!sampler.skip_blocks.empty()) {
    const Value skipped = graph.input("skipped", type);
    const Value scale = graph.input("skip_scale", {{jobs}, DType::kF32, {}});
    prediction = prediction + (first_rows(sample, 0) - skipped) * reshape(scale, per_job);
  }
  std::vector<Value> terms = {latents, prediction};
  std::vector<size_t> factor_of = {kLatents, kPrediction};
  if (sampler.noise) {
    const Value keys = graph.input("noise_keys", {{jobs, 4}, DType::kI32, {}});
    terms.push_back(gaussian(keys, type.shape));
    factor_of.push_back(kNoise);
  }
  for (size_t i = 0; i < sampler.memories; ++i) {
    terms.push_back(graph.input(memory_name(i), type));
    factor_of.push_back(kFirstMemory + i);
  }
  const auto results = static_cast<int64_t>(1 + sampler.memories);
  const auto count = static_cast<int64_t>(kFirstMemory + sampler.memories);
  const Value factors = graph.input("factors", {{results, jobs, count}, DType::kF32, {}});
  // Terms in the order of the factors, as the scheduler's own arithmetic has them.
  for (int64_t r = 0; r < results; ++r) {
    std::optional<Value> sum;
    for (size_t t = 0; t < terms.size(); ++t) {
      const auto column = static_cast<int64_t>(factor_of[t]);
      const Value factor =
          reshape(slice(slice(factors, 0, r, r + 1), 2, column, column + 1), per_job);
      const Value term = terms[t] * factor;
      sum = sum ? *sum + term : term;
    }
    graph.output(r == 0 ? "next" : next_memory_name(static_cast<size_t>(r - 1)), *sum);
  }
}

}  // namespace halftone
