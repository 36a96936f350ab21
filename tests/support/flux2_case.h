// A tiny FLUX.2 transformer of tests/data/flux2: its config and inputs, made as
// tools/golden/flux2_transformer.py makes them, and what diffusers computed.
#pragma once

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "halftone/io/json.h"
#include "halftone/io/safetensors_file.h"
#include "halftone/models/flux2/transformer.h"
#include "tests/support/procedural.h"
#include "tests/support/run_graph.h"

namespace halftone::test {

inline std::filesystem::path flux2_data(const std::string& name) {
  return std::filesystem::path(HALFTONE_TEST_DATA) / "flux2" / (name + ".safetensors");
}

struct Flux2Case {
  explicit Flux2Case(const std::string& name)
      : name_(name), fixture_(flux2_data("transformer_" + name)) {
    const auto json = parse_json(fixture_.metadata().at("case"), "fixture");
    config_ = flux2::parse_transformer_config(json["config"], "fixture");
    sigmas_ = json["sigmas"].get<std::vector<float>>();
    bf16_error_ = json["bf16_error"];
    const float unit = std::sqrt(3.0f);
    const auto batch = static_cast<int64_t>(sigmas_.size());
    const auto latents = [&](const std::string& what, const nlohmann::json& size) {
      return procedural_uniform(
          name + "." + what,
          {batch, config_.in_channels, size[0].get<int64_t>(), size[1].get<int64_t>()}, unit);
    };
    latents_ = latents("latents", json["size"]);
    for (int64_t b = 0; b < batch; ++b) {
      texts_.push_back(procedural_uniform(fmt::format("{}.text.{}", name, b),
                                          {json["text"].get<int64_t>(), config_.joint_dim}, unit));
    }
    for (const auto& size : json["references"]) {
      references_.push_back(latents(fmt::format("reference.{}", references_.size()), size));
    }
    shape_ = flux2::shape_for(latents_, texts_, references_);
    inputs_ = flux2::transformer_inputs(config_, latents_, sigmas_, texts_, references_);
  }

  std::vector<float> expected(const std::string& name) const {
    return floats(fixture_.tensor(name));
  }

  std::string name_;
  SafetensorsFile fixture_;
  flux2::TransformerConfig config_;
  flux2::TransformerShape shape_;
  std::vector<float> sigmas_;
  double bf16_error_ = 0;  // diffusers' own, against fp32
  std::vector<Tensor> texts_, references_;
  Tensor latents_;
  std::map<std::string, Tensor> inputs_;
};

}  // namespace halftone::test
