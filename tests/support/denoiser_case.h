// A tiny denoiser of a family, as a fixture of tools/golden/denoiser.py describes it: its config,
// inputs by name, and what diffusers computed.
#pragma once

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <vector>

#include "halftone/io/json.h"
#include "halftone/io/safetensors_file.h"
#include "halftone/models/family.h"
#include "tests/support/procedural.h"
#include "tests/support/run_graph.h"
#include "tests/support/tiny_denoiser.h"

namespace halftone::test {

struct Golden {
  const char* family;  // and folder of fixtures
  Family (*row)();
  const char* name;
};
inline std::ostream& operator<<(std::ostream& out, const Golden& g) {
  return out << g.family << "_" << g.name;
}

class DenoiserCase {
 public:
  explicit DenoiserCase(const Golden& golden)
      : name_(golden.name),
        fixture_(data(golden, "transformer_" + name_)),
        case_(parse_json(fixture_.metadata().at("case"), "fixture")) {
    denoiser_ = tiny_denoiser(golden.row(), case_["config"]);
    const auto sigmas = case_["sigmas"].get<std::vector<double>>();
    latents_ =
        uniform("latents", {static_cast<int64_t>(sigmas.size()), denoiser_->channels(),
                            case_["size"][0].get<int64_t>(), case_["size"][1].get<int64_t>()});
    for (size_t i = 0; i < sigmas.size(); ++i) {
      Condition condition = {
          {"text", uniform(fmt::format("text.{}", i),
                           {case_["text"].get<int64_t>(), denoiser_->text_features()})}};
      for (const auto& [vector, width] : denoiser_->vectors()) {
        condition[vector] = uniform(fmt::format("{}.{}", vector, i), {width});
      }
      if (denoiser_->reads_guidance()) {
        condition[kGuidanceOfCondition] = f32_tensor({1}, {case_["guidance"][i].get<float>()});
      }
      if (denoiser_->reads_sizes()) {
        condition[kSizesOfCondition] = f32_tensor({6}, case_["sizes"][i].get<std::vector<float>>());
      }
      conditions_.push_back(std::move(condition));
      SamplerStep step;
      step.sigma = sigmas[i];
      step.timestep = 1000 * step.sigma;
      times_.push_back(denoiser_->time(step));
    }
  }

  static std::filesystem::path data(const Golden& golden, const std::string& name) {
    return std::filesystem::path(HALFTONE_TEST_DATA) / golden.family / (name + ".safetensors");
  }

  // Of these rows.
  DenoiserShape shape(int64_t first, int64_t end) const {
    std::vector<int64_t> texts(static_cast<size_t>(end - first), case_["text"].get<int64_t>());
    const Shape& s = latents_.shape();
    return denoiser_->shape({s[1], s[2], s[3]}, texts);
  }
  DenoiserShape shape() const { return shape(0, latents_.shape()[0]); }
  NamedTensors inputs(int64_t first, int64_t end) const {
    std::vector<const Condition*> rows;
    Tensor times = Tensor::empty(DType::kF32, {end - first});
    for (int64_t i = first; i < end; ++i) {
      rows.push_back(&conditions_[static_cast<size_t>(i)]);
      times.mutable_as<float>()[i - first] = times_[static_cast<size_t>(i)];
    }
    NamedTensors inputs = denoiser_->inputs(shape(first, end), rows);
    inputs["latents"] = latents_.rows(first, end);
    inputs["time"] = times;
    return inputs;
  }
  NamedTensors inputs() const { return inputs(0, latents_.shape()[0]); }

  std::vector<float> expected(const std::string& name) const {
    return floats(fixture_.tensor(name));
  }
  Tensor uniform(const std::string& what, const Shape& shape) const {
    return procedural_uniform(name_ + "." + what, shape, std::sqrt(3.0f));
  }
  double bf16_error() const { return case_["bf16_error"]; }

  std::string name_;
  SafetensorsFile fixture_;
  nlohmann::json case_;
  std::unique_ptr<Denoiser> denoiser_;
  Tensor latents_;
  std::vector<Condition> conditions_;
  std::vector<float> times_;
};

}  // namespace halftone::test
