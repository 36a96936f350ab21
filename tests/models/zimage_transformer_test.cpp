// Tiny Z-Image transformers against diffusers: every block, the result, and gradients of a loss.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "halftone/graph/catalogue.h"
#include "halftone/io/json.h"
#include "halftone/io/safetensors_file.h"
#include "halftone/models/weights.h"
#include "halftone/models/zimage/names.h"
#include "halftone/models/zimage/transformer.h"
#include "halftone/passes/lower.h"
#include "tests/support/backend.h"
#include "tests/support/errors.h"
#include "tests/support/procedural.h"
#include "tests/support/run_graph.h"
#include "tests/support/sanitizers.h"

namespace halftone::zimage {
namespace {

using test::floats;
using test::relative_error;

class Golden : public testing::TestWithParam<const char*> {
 protected:
  Golden()
      : fixture_(std::filesystem::path(HALFTONE_TEST_DATA) / "zimage" /
                 (std::string("transformer_") + GetParam() + ".safetensors")) {
    const auto json = parse_json(fixture_.metadata().at("case"), "fixture");
    config_ = parse_transformer_config(json["config"], "fixture");
    const int64_t height = json["size"][0], width = json["size"][1];
    const std::string name = json["name"];
    time_ = json["t"].get<std::vector<float>>();
    bf16_error_ = json["bf16_error"];
    const float unit = std::sqrt(3.0f);
    for (size_t i = 0; i < time_.size(); ++i) {
      captions_.push_back(test::procedural_uniform(
          fmt::format("{}.caption.{}", name, i),
          {json["captions"][i].get<int64_t>(), config_.cap_feat_dim}, unit));
    }
    const Shape shape{static_cast<int64_t>(time_.size()), config_.in_channels, height, width};
    latents_ = test::procedural_uniform(name + ".latents", shape, unit);
    target_ = test::procedural_uniform(name + ".target", shape, unit);
    shape_ = shape_for(latents_, captions_);
    inputs_ = transformer_inputs(config_, shape_, latents_, time_, captions_);
  }

  std::vector<float> expected(const std::string& name) const {
    return floats(fixture_.tensor(name));
  }

  SafetensorsFile fixture_;
  TransformerConfig config_;
  TransformerShape shape_;
  std::vector<float> time_;
  double bf16_error_ = 0;  // diffusers' own, against fp32
  std::vector<Tensor> captions_;
  Tensor latents_, target_;
  std::map<std::string, Tensor> inputs_;
};
INSTANTIATE_TEST_SUITE_P(, Golden, testing::Values("ragged", "square", "aligned"),
                         [](const auto& tested) { return tested.param; });

// Rows of [B, T, C] that count: those that are not padding of the batch.
std::vector<float> rows_within(const Tensor& x, const std::vector<int64_t>& lengths) {
  std::vector<float> out;
  const auto all = floats(x);
  const int64_t tokens = x.shape()[1], cols = x.shape()[2];
  for (size_t b = 0; b < lengths.size(); ++b) {
    const auto start = all.begin() + static_cast<int64_t>(b) * tokens * cols;
    out.insert(out.end(), start, start + std::min(lengths[b], tokens) * cols);
  }
  return out;
}

TEST_P(Golden, EveryBlockEqualsDiffusers) {
  const auto graph = build_transformer(config_, shape_, {DType::kF32, true});
  auto program = test::tested_program(graph, test::procedural_weights(*graph));
  const auto results = program.run(inputs_);
  std::vector<int64_t> caption, all;
  for (const Tensor& c : captions_) {
    caption.push_back(padded_length(c.shape()[0]));
    all.push_back(padded_length(shape_.height * shape_.width / 4) + caption.back());
  }
  int blocks = 0;
  for (const auto& [name, result] : results) {
    const Tensor reference = fixture_.tensor(name);
    double error = 0;
    if (result.shape().rank() == 3) {
      const auto& lengths = name.starts_with("context") ? caption : all;
      error = relative_error(rows_within(result, lengths), rows_within(reference, lengths));
      ++blocks;
    } else {
      error = relative_error(floats(result), floats(reference));
    }
    EXPECT_LE(error, 2e-5) << name;
  }
  EXPECT_EQ(blocks, config_.layers + 2 * config_.refiner_layers);
}

TEST_P(Golden, Bf16IsNoWorseThanDiffusersInBf16) {
  const auto graph = build_transformer(config_, shape_, {DType::kBF16, false});
  auto program = test::tested_program(graph, test::procedural_weights(*graph));
  const double error =
      relative_error(floats(program.run(inputs_).at("sample")), expected("sample"));
  EXPECT_LE(error, 1.25 * bf16_error_);
  EXPECT_GE(error, 0.1 * bf16_error_);  // it did round
}

// Which precision, and the relative error of the model's output that it costs.
struct PrecisionBand {
  Format format;
  double least, most;
};

TEST_P(Golden, PrecisionsCostWhatTheyShouldAndNotLess) {
  HT_SKIP_WHERE_SANITIZED();
  const PrecisionBand bands[] = {{formats::fp8, 0.015, 0.12},
                                 {formats::fp8_tensor, 0.015, 0.12},
                                 {formats::mxfp8, 0.015, 0.12},
                                 {formats::nvfp4, 0.06, 0.45}};
  const auto exact = expected("sample");
  for (const auto& [format, least, most] : bands) {
    const auto graph = build_transformer(config_, shape_, {DType::kBF16, false});
    CompileOptions how;
    how.recipe = default_recipe(format);
    how.optimize = false;
    const CompiledGraph plain = compile(*graph, how, test::tested_kernels(), test::tested_stream());
    // All linears of blocks, and nothing else.
    const auto blocks = static_cast<size_t>(config_.layers + 2 * config_.refiner_layers);
    EXPECT_EQ(plain.report.converted.size(), 7 * blocks);
    for (const auto& kept : plain.report.kept) {
      EXPECT_FALSE(kept.unsupported) << kept.weight;
      EXPECT_NE(kept.reason, "not selected by the recipe") << kept.weight;
    }
    Weights weights = test::procedural_weights(*graph);
    quantize_weights(weights, plain.report, cpu_kernels(), {2});
    const auto run = [&](const std::shared_ptr<Graph>& g) {
      return floats(test::tested_program(g, weights).run(inputs_).at("sample"));
    };
    const auto sample = run(plain.graph);
    how.optimize = true;
    const double error = relative_error(sample, exact);
    EXPECT_GE(error, least) << format.name;
    EXPECT_LE(error, most) << format.name;
    EXPECT_LE(relative_error(run(test::tested_compile(*graph, how)), sample),
              test::compile_tolerance(DType::kBF16))
        << format.name << ": compiled and not differ";
  }
}

TEST_P(Golden, CompiledGivesTheSameBits) {
  for (const DType activations : {DType::kF32, DType::kBF16}) {
    const auto graph = build_transformer(config_, shape_, {activations, true});
    const auto weights = test::procedural_weights(*graph);
    const auto apart = test::tested_program(graph, weights).run(inputs_);
    const auto fused_graph = test::tested_compile(*graph);
    for (const Node& node : fused_graph->nodes()) {
      // Alone stand the SwiGLU between two products, the first norm of an unmodulated sequence, and
      // what prepares modulation, which is one row per picture.
      const bool row_op = node.op == Op::kRope || node.op == Op::kAdd || node.op == Op::kMul;
      EXPECT_FALSE(row_op && node.region >= 0) << op_info(node.op).name;
    }
    auto fused = test::tested_program(fused_graph, weights);
    for (const auto& [name, tensor] : fused.run(inputs_)) {
      EXPECT_LE(relative_error(floats(tensor), floats(apart.at(name))),
                test::compile_tolerance(activations))
          << name;
    }
  }
}

// The error of u g or g v, u and v uniform in [-1, 1), relative to what such a product of a matrix
// with g's norm has: a product that happens to cancel does not blow up the error of g.
double projection_error(const std::vector<double>& y, const std::vector<float>& reference,
                        const std::vector<float>& g) {
  EXPECT_EQ(y.size(), reference.size());
  double difference = 0, norm = 0;
  for (size_t i = 0; i < y.size(); ++i) difference += std::pow(y[i] - reference[i], 2);
  for (const float v : g) norm += double{v} * v;
  return std::sqrt(difference / (norm / 3));
}

TEST_P(Golden, GradientsOfALossEqualAutograd) {
  const auto graph = build_transformer(config_, shape_, {});
  const Value target = graph->input("target", {target_.shape(), DType::kF32, {}});
  const Value loss = mean_squared_error(graph->outputs().at("sample"), target);
  graph->output("loss", loss);
  std::vector<Value> wrt = {graph->inputs().at("latents"), graph->inputs().at("captions")};
  for (const auto& [name, value] : graph->weights()) wrt.push_back(value);
  const auto gradients = differentiate(loss, wrt);
  for (size_t i = 0; i < wrt.size(); ++i)
    graph->output("grad." + graph->info(wrt[i]).name, gradients[i]);
  auto program = test::tested_program(graph, test::procedural_weights(*graph));
  auto inputs = inputs_;
  inputs["target"] = target_;
  const auto results = program.run(inputs);

  EXPECT_LE(relative_error(floats(results.at("loss")), expected("loss")), 2e-5);
  EXPECT_LE(relative_error(floats(results.at("grad.latents")), expected("grad.latents")), 1e-4);
  for (size_t b = 0; b < captions_.size(); ++b) {
    const auto row = static_cast<int64_t>(b);
    const Tensor all = results.at("grad.captions").rows(row, row + 1);
    const Tensor own =
        all.reshape({all.shape()[1], all.shape()[2]}).rows(0, captions_[b].shape()[0]);
    EXPECT_LE(relative_error(floats(own), expected(fmt::format("grad.caption.{}", b))), 1e-4);
  }
  int compared = 0;
  for (const auto& [name, value] : graph->weights()) {
    const auto g = floats(results.at("grad." + name));
    if (fixture_.find("grad." + name) != nullptr) {
      EXPECT_LE(relative_error(g, expected("grad." + name)), 1e-4) << name;
      ++compared;
    } else if (fixture_.find("grad_left." + name) != nullptr) {
      const int64_t rows = value.dim(0), cols = value.dim(1);
      const auto left = floats(test::procedural_uniform(fmt::format("left.{}", rows), {rows}));
      const auto right = floats(test::procedural_uniform(fmt::format("right.{}", cols), {cols}));
      std::vector<double> along(cols), across(rows);
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < cols; ++c) {
          along[c] += double{left[r]} * g[r * cols + c];
          across[r] += double{right[c]} * g[r * cols + c];
        }
      }
      EXPECT_LE(projection_error(along, expected("grad_left." + name), g), 1e-4) << name;
      EXPECT_LE(projection_error(across, expected("grad_right." + name), g), 1e-4) << name;
      ++compared;
    } else {
      // diffusers gives no gradient only where the weight has no influence.
      EXPECT_LE(relative_error(g, std::vector<float>(g.size(), 0.0f)), 1e-6) << name;
    }
  }
  EXPECT_GT(compared, 40);
}

TEST(ZImageConfig, WhatDoesNotFitIsNamed) {
  const auto parse = [](const char* json) {
    return test::error_of(
        [&] { parse_transformer_config(nlohmann::json::parse(json), "config.json"); });
  };
  EXPECT_EQ(parse("{}"), "(no error)");
  EXPECT_EQ(parse(R"({"dim":"x"})"), "config.json: 'dim' is not an integer");
  EXPECT_EQ(parse(R"({"dim":-3})"), "config.json: 'dim' -3 is not in 1 .. 65536");
  EXPECT_EQ(parse(R"({"n_heads":7})"), "config.json: 'n_heads' does not divide 'dim'");
  EXPECT_EQ(parse(R"({"axes_dims":[32,48,46]})"),
            "config.json: 'axes_dims' adds up to 126, not to the head's 128 ('dim' / 'n_heads')");
  EXPECT_EQ(parse(R"({"axes_lens":[33,512,512]})"),
            "config.json: 'axes_lens' begins with 33, and the shortest caption takes 34 positions");
  EXPECT_EQ(parse(R"({"axes_lens":[34,512,512]})"), "(no error)");
  EXPECT_EQ(parse(R"({"siglip_feat_dim":4})"),
            "config.json: 'siglip_feat_dim' is 4, which is not supported");
  EXPECT_EQ(parse("[]"), "config.json: is not a JSON object");
}

TEST(ZImageInputs, SizesBeyondTheTablesAreRefused) {
  TransformerConfig config;
  config.axes_lens = {64, 8, 8};
  config.cap_feat_dim = 4;
  const Tensor latents = Tensor::zeros(DType::kF32, {1, 16, 20, 4});
  const std::vector<Tensor> captions = {Tensor::zeros(DType::kF32, {3, 4})};
  const float time[] = {0.5f};
  EXPECT_EQ(test::error_of([&] {
              transformer_inputs(config, shape_for(latents, captions), latents, time, captions);
            }),
            "size: 'axes_lens' has positions for 8 rows of patches, not for 10");
  const std::vector<Tensor> longer = {Tensor::zeros(DType::kF32, {33, 4})};
  EXPECT_EQ(
      test::error_of([&] { caption_inputs(config, shape_for(latents, longer), longer); }),
      "prompt: 33 tokens are more than the 32 that 'axes_lens' of the model has positions for");
}

}  // namespace
}  // namespace halftone::zimage
