// The parts around the FLUX.2 transformer against transformers and diffusers: states of a tiny
// Qwen3 after several layers, and a tiny AutoencoderKLFlux2.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "halftone/io/safetensors_writer.h"
#include "halftone/models/autoencoder_kl/autoencoder.h"
#include "halftone/models/qwen3/names.h"
#include "halftone/models/qwen3/text_encoder.h"
#include "tests/support/backend.h"
#include "tests/support/errors.h"
#include "tests/support/flux2_case.h"
#include "tests/support/flux2_statistics.h"
#include "tests/support/temp_dir.h"

namespace halftone {
namespace {

using test::floats;
using test::relative_error;

TEST(Flux2TextEncoder, StatesAfterLayersEqualTransformersOnPaddingToo) {
  const SafetensorsFile file(test::flux2_data("text_encoder"));
  const auto json = parse_json(file.metadata().at("case"), "fixture");
  const auto config = qwen3::parse_config(json["config"], "fixture");
  const auto prompts = json["prompts"].get<std::vector<std::vector<int32_t>>>();
  const int64_t tokens = json["tokens"];
  const auto batch = static_cast<int64_t>(prompts.size());
  qwen3::Options options;
  options.states_after = json["layers"].get<std::vector<int64_t>>();
  options.lengths = true;
  const auto graph = qwen3::build_text_encoder(config, batch, tokens, options);
  const auto weights = test::procedural_weights(*graph);
  const auto inputs = qwen3::text_inputs(config, tokens, prompts, json["pad"].get<int32_t>());
  for (const auto& compiled : {graph, test::tested_compile(*graph)}) {
    const Tensor states = test::tested_program(compiled, weights).run(inputs).at("states");
    EXPECT_EQ(states.shape(), (Shape{batch, tokens, 3 * config.hidden_size}));
    EXPECT_LE(relative_error(floats(states), floats(file.tensor("states"))), 2e-5);
  }
  // Layers beyond the last one that is asked for are not run.
  EXPECT_TRUE(graph->weights().contains("model.layers.3.mlp.up_proj.weight"));
  EXPECT_FALSE(graph->weights().contains("model.layers.4.mlp.up_proj.weight"));

  // Without lengths padding attends to itself: the prompts' rows are the same, the others not.
  options.lengths = false;
  const auto open = qwen3::build_text_encoder(config, batch, tokens, options);
  auto without = inputs;
  without.erase("lengths");
  const Tensor unmasked = test::tested_program(open, weights).run(without).at("states");
  EXPECT_LE(relative_error(floats(unmasked), floats(file.tensor("unmasked"))), 2e-5);
  EXPECT_GT(relative_error(floats(unmasked), floats(file.tensor("states"))), 1e-3);
}

TEST(Flux2TextEncoder, LayersThatAreNotRunMayBeInTheFile) {
  const test::TempDir dir;
  qwen3::Config config;
  config.layers = 12;
  qwen3::Options options;
  options.states_after = {2, 5, 3};
  EXPECT_EQ(qwen3::layers_run(config, options), 5);
  for (const std::string prefix : {"", "model."}) {
    write_safetensors(dir / "t.safetensors",
                      {{prefix + "embed_tokens.weight", Tensor::zeros(DType::kBF16, {2, 2})}});
    const auto names = qwen3::names_in(Checkpoint::open(dir / "t.safetensors"), config, options);
    EXPECT_EQ(names.stored_as("model.layers.0.x").name, prefix + "layers.0.x");
    for (const char* unused : {"layers.5.x", "layers.10.mlp.y", "layers.11.x", "norm.weight"}) {
      EXPECT_TRUE(names.known_unused(prefix + unused)) << prefix << unused;
    }
    for (const char* used : {"layers.4.x", "layers.12.x", "layers.-7.x", "layers.5", "layers.5x.x",
                             "layers..x", "layers.99999999999999999999.x", "other"}) {
      EXPECT_FALSE(names.known_unused(prefix + used)) << prefix << used;
    }
    EXPECT_TRUE(names.known_unused("lm_head.weight"));
  }
}

class Flux2Autoencoder : public testing::Test {
 protected:
  Flux2Autoencoder() : file_(test::flux2_data("autoencoder")) {
    const auto json = parse_json(file_.metadata().at("case"), "fixture");
    config_ = autoencoder_kl::parse_flux2_config(json["config"], "fixture");
  }
  void write(const std::vector<std::pair<std::string, Tensor>>& tensors) const {
    write_safetensors(dir_ / "vae.safetensors", tensors);
  }
  std::string statistics_error(const std::vector<std::pair<std::string, Tensor>>& tensors) {
    write(tensors);
    const std::string error = test::error_of([&] {
      autoencoder_kl::read_statistics(config_, Checkpoint::open(dir_ / "vae.safetensors"));
    });
    return error.substr(std::min(error.size(), (dir_ / "vae.safetensors").string().size()));
  }

  test::TempDir dir_;
  SafetensorsFile file_;
  autoencoder_kl::Config config_;
};

TEST_F(Flux2Autoencoder, DecodesAndEncodesLikeDiffusers) {
  write(test::flux2_statistics(config_.sampler_channels()));
  const Checkpoint statistics = Checkpoint::open(dir_ / "vae.safetensors");
  autoencoder_kl::read_statistics(config_, statistics);
  EXPECT_EQ(config_.scale(), 4);
  const auto decoder = autoencoder_kl::build_decoder(config_, 2, 3, 5, {});
  const Tensor latents = test::procedural_uniform("vae.latents", {2, 16, 3, 5}, std::sqrt(3.0f));
  const auto decoded =
      test::tested_program(decoder, test::procedural_weights(*decoder)).run({{"latents", latents}});
  EXPECT_LE(relative_error(floats(decoded.at("image")), floats(file_.tensor("decoded"))), 2e-5);
  const auto encoder = autoencoder_kl::build_encoder(config_, 2, 12, 20, {});
  const auto encoded = test::tested_program(encoder, test::procedural_weights(*encoder))
                           .run({{"image", test::procedural_uniform("vae.image", {2, 3, 12, 20})}});
  for (const char* name : {"mean", "logvar", "latents"}) {
    EXPECT_LE(relative_error(floats(encoded.at(name)), floats(file_.tensor(name))), 2e-5) << name;
  }
}

TEST_F(Flux2Autoencoder, StatisticsAreCheckedAndAccountedFor) {
  const auto good = test::flux2_statistics(config_.sampler_channels());
  EXPECT_EQ(statistics_error(good), "");
  EXPECT_EQ(statistics_error({good[0]}), ": tensor 'bn.running_var' is missing");
  EXPECT_EQ(statistics_error({{"bn.running_mean", test::f32_tensor({2}, {0, 0})}, good[1]}),
            ": tensor 'bn.running_mean' is F32 [2] instead of one number for each of 16 channels");
  std::vector<float> values(16, 1.0f);
  values[3] = -0.5f;
  EXPECT_EQ(statistics_error({good[0], {"bn.running_var", test::f32_tensor({16}, values)}}),
            ": tensor 'bn.running_var' holds -0.5, which is no variance");
  values[3] = NAN;
  EXPECT_EQ(statistics_error({{"bn.running_mean", test::f32_tensor({16}, values)}, good[1]}),
            ": tensor 'bn.running_mean' holds NaN or Inf");

  // A whole file: no tensor is missed, and none is a surprise.
  write(good);
  autoencoder_kl::read_statistics(config_, Checkpoint::open(dir_ / "vae.safetensors"));
  const std::shared_ptr<Graph> graphs[] = {autoencoder_kl::build_decoder(config_, 1, 1, 1, {}),
                                           autoencoder_kl::build_encoder(config_, 1, 4, 4, {})};
  auto tensors = good;
  tensors.emplace_back("bn.num_batches_tracked", Tensor::zeros(DType::kI32, {1}));
  Weights weights;
  for (const auto& graph : graphs) weights.merge(test::procedural_weights(*graph));
  for (const auto& [name, weight] : weights) tensors.emplace_back(name, std::get<Tensor>(weight));
  write(tensors);
  const Checkpoint whole = Checkpoint::open(dir_ / "vae.safetensors");
  EXPECT_EQ(load_weights(whole, graphs, autoencoder_kl::flux2_weight_names()).size(),
            weights.size());
}

}  // namespace
}  // namespace halftone
