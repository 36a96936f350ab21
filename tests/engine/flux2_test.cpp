// FLUX.2-klein through the same door as every family, against diffusers' own pipeline.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "halftone/engine/checks.h"
#include "halftone/io/json.h"
#include "halftone/io/safetensors_file.h"
#include "tests/support/data.h"
#include "tests/support/errors.h"
#include "tests/support/load_pipeline.h"
#include "tests/support/procedural.h"
#include "tests/support/run_graph.h"
#include "tests/support/silent.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tested_options.h"
#include "tests/support/tiny_flux2.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;
using test::floats;
using test::relative_error;

using test::kData;

class Flux2Engine : public testing::TestWithParam<const char*> {
 protected:
  Flux2Engine()
      : fixture_(kData / "flux2" / (std::string("pipeline_") + GetParam() + ".safetensors")),
        case_(parse_json(fixture_.metadata().at("case"), "fixture")) {
    test::write_flux2_folder(folder_, case_, kData / "tokenizer" / "tokenizer.json");
  }

  test::TempDir dir_;
  fs::path folder_ = dir_ / "model";
  SafetensorsFile fixture_;
  nlohmann::json case_;
};
INSTANTIATE_TEST_SUITE_P(, Flux2Engine, testing::Values("distilled", "base"),
                         [](const auto& tested) { return tested.param; });

// diffusers says of a distilled one that it passes over the guidance.
TEST_P(Flux2Engine, ADistilledModelTakesNoGuidance) {
  Engine engine;
  ModelSpec spec;
  spec.path = folder_.string();
  spec.device = "cpu";
  const Sampling sampling = engine.load(spec).sampling;
  GenerateRequest request;
  request.guidance = 4;
  const auto said = [&] { return test::error_of([&] { check(request, sampling); }); };
  const bool distilled = std::string_view(GetParam()) == "distilled";
  EXPECT_EQ(said(), distilled ? "guidance: 4 would do nothing: this model is distilled, and takes "
                                "no guidance"
                              : "(no error)");
  request.guidance = 1;
  EXPECT_EQ(said(), "(no error)");
  request.negative = "blur";
  EXPECT_EQ(said(), distilled
                        ? "negative: does nothing: this model is distilled, and takes no guidance"
                        : "negative: does nothing without guidance above 1");
  test::write_file(folder_ / "halftone.json", R"({"guidance": 4})");
  const std::string loaded = test::error_of([&] { engine.load(spec); });
  EXPECT_EQ(loaded, distilled ? (folder_ / "halftone.json").string() +
                                    ": 'guidance' is for a distilled model, which takes none"
                              : "(no error)");
}

TEST_P(Flux2Engine, EqualsDiffusersFromPromptToPicture) {
  for (const bool compile : {false, true}) {
    LoadOptions options = test::tested_options();
    options.compile = compile;
    const auto pipeline = test::load_pipeline(folder_, options);
    EXPECT_EQ(pipeline->model().family().name, "flux.2-klein");
    const Sampling& sampling = pipeline->model().sampling();
    const bool distilled = std::string_view(GetParam()) == "distilled";
    EXPECT_EQ(sampling.steps, distilled ? 4 : 50);

    GenerateRequest request;
    request.prompt = case_["prompt"];
    request.width = case_["size"][0];
    request.height = case_["size"][1];
    request.steps = case_["steps"];
    request.guidance = case_["guidance"];
    request.count = request.batch = case_["count"];
    const std::string last = fmt::format("latents.{}", request.steps - 1);
    const Shape shape = fixture_.tensor(last).shape();
    request.noise =
        test::procedural_uniform(std::string(GetParam()) + ".noise", shape, std::sqrt(3.0f));
    EXPECT_LE(relative_error(floats(pipeline->encode(request.prompt).at("text")),
                             floats(fixture_.tensor("states"))),
              2e-5);
    const GenerateResult result = generate(*pipeline, request, test::silent);
    EXPECT_LE(relative_error(floats(result.latents), floats(fixture_.tensor(last))), 2e-5);
    std::vector<float> image;
    for (const Tensor& picture : result.images) {
      for (const float v : picture.as<float>()) image.push_back(std::clamp(v, -1.0f, 1.0f));
    }
    EXPECT_LE(relative_error(image, floats(fixture_.tensor("image"))), 2e-5);
  }
}

}  // namespace
}  // namespace halftone
