// A whole tiny FLUX.2-klein folder, its parts put together by hand, against diffusers' pipeline:
// text states, latents after each step, picture.
#include <gtest/gtest.h>

#include "halftone/models/autoencoder_kl/autoencoder.h"
#include "halftone/models/flux2/names.h"
#include "halftone/models/qwen3/names.h"
#include "tests/support/backend.h"
#include "tests/support/flux2_case.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_flux2.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;
using test::floats;
using test::relative_error;

class Flux2Pipeline : public testing::TestWithParam<const char*> {
 protected:
  Flux2Pipeline()
      : fixture_(test::flux2_data(std::string("pipeline_") + GetParam())),
        case_(parse_json(fixture_.metadata().at("case"), "fixture")) {
    test::write_flux2_folder(folder_, case_,
                             fs::path(HALFTONE_TEST_DATA) / "tokenizer" / "tokenizer.json");
  }
  nlohmann::json config_of(const char* part) const {
    return read_json_file(folder_ / part / "config.json");
  }

  // [512, 3 * hidden] of these ids.
  Tensor encode(const std::vector<int32_t>& ids) const {
    const auto config = qwen3::parse_config(config_of("text_encoder"), "text_encoder");
    constexpr int64_t kTokens = 512;
    qwen3::Options options;
    options.states_after = {9, 18, 27};
    options.lengths = true;
    const auto graph = qwen3::build_text_encoder(config, 1, kTokens, options);
    const auto file = Checkpoint::open(folder_ / "text_encoder");
    const Weights weights = load_weights(file, {&graph, 1}, qwen3::names_in(file, config, options));
    const Tensor states =
        test::tested_program(graph, weights)
            .run(qwen3::text_inputs(config, kTokens, {&ids, 1}, case_["pad_id"].get<int32_t>()))
            .at("states");
    return states.reshape({kTokens, states.shape()[2]});
  }

  Tensor decode(const Tensor& latents) const {
    auto config = autoencoder_kl::parse_flux2_config(config_of("vae"), "vae");
    const auto file = Checkpoint::open(folder_ / "vae");
    autoencoder_kl::read_statistics(config, file);
    const Shape& s = latents.shape();
    const int64_t size = config.scale();
    const std::shared_ptr<Graph> graphs[] = {
        autoencoder_kl::build_decoder(config, s[0], s[2], s[3], {}),
        autoencoder_kl::build_encoder(config, 1, size, size, {})};
    Weights weights = load_weights(file, graphs, autoencoder_kl::flux2_weight_names());
    std::erase_if(weights, [&](const auto& w) { return !graphs[0]->weights().contains(w.first); });
    return test::tested_program(graphs[0], weights).run({{"latents", latents}}).at("image");
  }

  test::TempDir dir_;
  fs::path folder_ = dir_ / "model";
  SafetensorsFile fixture_;
  nlohmann::json case_;
};
INSTANTIATE_TEST_SUITE_P(, Flux2Pipeline, testing::Values("distilled", "base"),
                         [](const auto& tested) { return tested.param; });

TEST_P(Flux2Pipeline, EqualsDiffusersFromIdsToPicture) {
  const auto given = fixture_.tensor("ids").as<int32_t>();
  const Tensor states = encode({given.begin(), given.end()});
  EXPECT_LE(relative_error(floats(states), floats(fixture_.tensor("states"))), 2e-5);
  std::vector<Tensor> prompts = {states};
  const float guidance = case_["guidance"];
  if (guidance > 1) {
    const auto empty = fixture_.tensor("empty_ids").as<int32_t>();
    prompts.push_back(encode({empty.begin(), empty.end()}));
  }

  const auto config = flux2::parse_transformer_config(config_of("transformer"), "transformer");
  const auto file = Checkpoint::open(folder_ / "transformer");
  const int64_t count = case_["count"];
  const Shape shape = fixture_.tensor("latents.0").shape();
  Tensor latents =
      test::procedural_uniform(std::string(GetParam()) + ".noise", shape, std::sqrt(3.0f));
  const auto graph =
      flux2::build_transformer(config, {count, shape[2], shape[3], states.shape()[0]}, {});
  const Weights weights = load_weights(file, {&graph, 1}, flux2::names_in(file));
  auto program = test::tested_program(graph, weights);
  const auto sigmas = floats(fixture_.tensor("sigmas"));
  for (size_t step = 0; step + 1 < sigmas.size(); ++step) {
    std::vector<std::vector<float>> velocities;
    for (const Tensor& prompt : prompts) {
      const std::vector<Tensor> rows(static_cast<size_t>(count), prompt);
      const std::vector<float> times(static_cast<size_t>(count), sigmas[step]);
      velocities.push_back(floats(
          program.run(flux2::transformer_inputs(config, latents, times, rows)).at("sample")));
    }
    Tensor next = Tensor::empty(DType::kF32, shape);
    for (int64_t i = 0; i < next.numel(); ++i) {
      float v = velocities[0][i];
      if (velocities.size() > 1) v = velocities[1][i] + guidance * (v - velocities[1][i]);
      next.mutable_as<float>()[i] = latents.as<float>()[i] + v * (sigmas[step + 1] - sigmas[step]);
    }
    latents = next;
    EXPECT_LE(
        relative_error(floats(latents), floats(fixture_.tensor(fmt::format("latents.{}", step)))),
        2e-5)
        << step;
  }
  auto image = floats(decode(latents));
  for (float& v : image) v = std::fmin(std::fmax(v, -1.0f), 1.0f);
  EXPECT_LE(relative_error(image, floats(fixture_.tensor("image"))), 2e-5);
}

}  // namespace
}  // namespace halftone
