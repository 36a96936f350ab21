// The parts around the Z-Image transformer against transformers and diffusers: a tiny Qwen3, a tiny
// AutoencoderKL, and the scheduler.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "halftone/diffusion/flow_match_euler.h"
#include "halftone/io/json.h"
#include "halftone/io/safetensors_file.h"
#include "halftone/models/autoencoder_kl/autoencoder.h"
#include "halftone/models/qwen3/text_encoder.h"
#include "tests/support/backend.h"
#include "tests/support/procedural.h"
#include "tests/support/run_graph.h"

namespace halftone {
namespace {

using test::floats;
using test::relative_error;

SafetensorsFile fixture(const std::string& name) {
  return SafetensorsFile(std::filesystem::path(HALFTONE_TEST_DATA) / "zimage" /
                         (name + ".safetensors"));
}

TEST(TextEncoder, EveryLayerEqualsTransformers) {
  const auto file = fixture("text_encoder");
  const auto json = parse_json(file.metadata().at("case"), "fixture");
  const auto config = qwen3::parse_config(json["config"], "fixture");
  const auto prompts = json["prompts"].get<std::vector<std::vector<int32_t>>>();
  // Both prompts in one batch, the shorter one followed by tokens that must not matter.
  const int64_t tokens = 64;
  const auto graph = qwen3::build_text_encoder(config, 2, tokens, {DType::kF32, true});
  auto program = test::tested_program(graph, test::procedural_weights(*graph));
  const auto results = program.run(qwen3::text_inputs(config, tokens, prompts));
  EXPECT_FALSE(
      graph->weights().contains("model.layers.2.mlp.up_proj.weight"));  // the last layer is not run
  for (size_t p = 0; p < prompts.size(); ++p) {
    for (const char* name : {"layer.0", "layer.1", "states"}) {
      const Tensor row =
          results.at(name).rows(static_cast<int64_t>(p), static_cast<int64_t>(p) + 1);
      const Tensor states = row.reshape({tokens, config.hidden_size})
                                .rows(0, static_cast<int64_t>(prompts[p].size()));
      EXPECT_LE(
          relative_error(floats(states), floats(file.tensor(fmt::format("prompt.{}.{}", p, name)))),
          2e-5)
          << p << " " << name;
    }
  }
}

TEST(Autoencoder, DecodesAndEncodesLikeDiffusers) {
  const auto file = fixture("autoencoder");
  const auto config =
      autoencoder_kl::parse_config(parse_json(file.metadata().at("case"), "f")["config"], "f");
  const auto decoder = autoencoder_kl::build_decoder(config, 2, 6, 4, {});
  const auto decoded = test::tested_program(decoder, test::procedural_weights(*decoder))
                           .run({{"latents", test::procedural_uniform("vae.latents", {2, 16, 6, 4},
                                                                      std::sqrt(3.0f))}});
  EXPECT_LE(relative_error(floats(decoded.at("image")), floats(file.tensor("decoded"))), 2e-5);
  const auto encoder = autoencoder_kl::build_encoder(config, 1, 12, 20, {});
  const auto encoded = test::tested_program(encoder, test::procedural_weights(*encoder))
                           .run({{"image", test::procedural_uniform("vae.image", {1, 3, 12, 20})}});
  EXPECT_LE(relative_error(floats(encoded.at("mean")), floats(file.tensor("mean"))), 2e-5);
  EXPECT_LE(relative_error(floats(encoded.at("logvar")), floats(file.tensor("logvar"))), 2e-5);
  const float mean = floats(encoded.at("mean"))[5];
  EXPECT_NEAR(floats(encoded.at("latents"))[5], (mean - 0.1159f) * 0.3611f, 1e-6);
}

TEST(FlowMatch, SigmasEqualDiffusers) {
  const auto file = fixture("schedules");
  const auto cases = parse_json(file.metadata().at("cases"), "fixture");
  ASSERT_EQ(cases.size(), 4u);
  for (size_t i = 0; i < cases.size(); ++i) {
    const auto config = parse_flow_match_config(cases[i]["config"], "fixture");
    const auto sigmas = flow_match_sigmas(config, cases[i]["steps"], cases[i]["tokens"]);
    const auto expected = floats(file.tensor(fmt::format("sigmas.{}", i)));
    ASSERT_EQ(sigmas.size(), expected.size());
    for (size_t k = 0; k < sigmas.size(); ++k)
      EXPECT_NEAR(sigmas[k], expected[k], 1e-6) << i << " " << k;
  }
}

TEST(FlowMatch, AStepMovesAlongTheVelocity) {
  std::vector<float> latents = {1, 2};
  const std::vector<float> velocity = {10, -4};
  euler_step(latents, velocity, 0.5f, 0.25f);
  EXPECT_EQ(latents, (std::vector<float>{-1.5f, 3}));
}

}  // namespace
}  // namespace halftone
