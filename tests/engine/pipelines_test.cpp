// Whole tiny models of families with CLIP and T5 through the same door as every family, against
// diffusers' own pipelines: text states, latents, pictures.
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
#include "tests/support/tiny_folder.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;
using test::error_of;
using test::floats;
using test::kData;
using test::relative_error;
using testing::ElementsAre;
using testing::HasSubstr;

struct WholeRun {
  const char *family, *name;
  int steps;       // that are usual
  float guidance;  // that is usual
};
std::ostream& operator<<(std::ostream& out, const WholeRun& run) {
  return out << run.family << "_" << run.name;
}

class WholePipeline : public testing::TestWithParam<WholeRun> {
 protected:
  WholePipeline()
      : fixture_(kData / GetParam().family /
                 fmt::format("pipeline_{}.safetensors", GetParam().name)),
        case_(parse_json(fixture_.metadata().at("case"), "fixture")) {
    test::write_tiny_folder(folder_, case_);
  }
  GenerateRequest request() const {
    GenerateRequest request;
    request.prompt = case_["prompt"];
    if (case_.contains("negative")) request.negative = case_["negative"];
    request.width = case_["size"][0];
    request.height = case_["size"][1];
    request.steps = case_["steps"];
    request.guidance = case_["guidance"];
    request.true_cfg = case_.value("true_cfg", 0.0f);
    request.skip.layers = case_.value("skip_layers", std::set<int64_t>{});
    request.skip.scale = case_.value("skip_layer_scale", request.skip.scale);
    if (case_.contains("original_size")) {
      const auto& size = case_["original_size"];
      const auto& crop = case_["crop"];
      request.original = {size[0], size[1], crop[0], crop[1]};
    }
    request.count = request.batch = case_["count"];
    const std::string name = fmt::format("latents.{}", request.steps - 1);
    request.noise = test::procedural_uniform(fmt::format("{}.noise", GetParam().name),
                                             fixture_.tensor(name).shape(), std::sqrt(3.0f));
    return request;
  }

  test::TempDir dir_;
  fs::path folder_ = dir_ / "model";
  SafetensorsFile fixture_;
  nlohmann::json case_;
};
INSTANTIATE_TEST_SUITE_P(
    , WholePipeline,
    testing::Values(WholeRun{"flux1", "dev", 28, 3.5f}, WholeRun{"flux1", "cfg", 28, 3.5f},
                    WholeRun{"flux1", "schnell", 4, 0.0f}, WholeRun{"sd3", "large", 28, 5.0f},
                    WholeRun{"sd3", "clips", 28, 5.0f}, WholeRun{"sd3", "skip", 28, 5.0f},
                    WholeRun{"sdxl", "base", 50, 5.0f}, WholeRun{"sdxl", "sizes", 50, 5.0f},
                    WholeRun{"sdxl", "empty", 50, 5.0f}, WholeRun{"sdxl", "v", 50, 5.0f},
                    WholeRun{"sdxl", "ddim", 50, 5.0f}, WholeRun{"sdxl", "dpm", 50, 5.0f},
                    WholeRun{"sdxl", "unipc", 50, 5.0f}),
    testing::PrintToStringParamName());

TEST_P(WholePipeline, EqualsDiffusersFromPromptToPicture) {
  for (const bool compile : {false, true}) {
    LoadOptions options = test::tested_options();
    options.compile = compile;
    const auto pipeline = test::load_pipeline(folder_, options);
    const Sampling& sampling = pipeline->model().sampling();
    EXPECT_EQ(sampling.steps, GetParam().steps);
    EXPECT_EQ(sampling.guidance, GetParam().guidance);
    const GenerateRequest r = request();
    EXPECT_EQ(error_of([&] { check(r, sampling); }), "(no error)");

    const auto expect_encoded = [&](const Condition& condition, const char* states,
                                    const char* pooled) {
      if (fixture_.find(states) == nullptr) return;
      EXPECT_LE(relative_error(floats(condition.at("text")), floats(fixture_.tensor(states))),
                2e-5);
      EXPECT_LE(relative_error(floats(condition.at("pooled")), floats(fixture_.tensor(pooled))),
                2e-5);
    };
    expect_encoded(pipeline->encode(r.prompt), "states", "pooled");
    expect_encoded(pipeline->encode_negative(r.negative, {}), "negative", "negative_pooled");
    const GenerateResult result = generate(*pipeline, r, test::silent);
    const auto latents = floats(fixture_.tensor(fmt::format("latents.{}", r.steps - 1)));
    EXPECT_LE(relative_error(floats(result.latents), latents), 2e-5);
    std::vector<float> image;
    for (const Tensor& picture : result.images) {
      for (const float v : picture.as<float>()) image.push_back(std::clamp(v, -1.0f, 1.0f));
    }
    EXPECT_LE(relative_error(image, floats(fixture_.tensor("image"))), 2e-5);
    // What CLIP cannot read of a long prompt is said.
    const auto& notes = pipeline->notes();
    if (std::string_view(GetParam().name) == "cfg") {
      EXPECT_THAT(notes, testing::Contains(HasSubstr("text_encoder reads the first 77 of")));
    } else {
      EXPECT_THAT(notes, testing::Each(testing::Not(HasSubstr("reads the first"))));
    }
  }
}

TEST_P(WholePipeline, GuidanceIsCheckedByWhatTheNetworkReads) {
  const Sampling sampling =
      test::load_pipeline(folder_, test::tested_options())->model().sampling();
  GenerateRequest r = request();
  const auto said = [&] { return error_of([&] { check(r, sampling); }); };
  r.negative = "blur";
  r.guidance = 1;
  r.true_cfg = 0;
  const bool dev = sampling.embedded_guidance;
  EXPECT_EQ(said(), dev ? "negative: does nothing without true_cfg above 1"
                        : "negative: does nothing without guidance above 1");
  r.true_cfg = 2;
  EXPECT_EQ(said(), dev ? "(no error)"
                        : "true_cfg: is for models that read guidance themselves: give this one a "
                          "guidance instead");
  r.true_cfg = 0;
  r.guidance = 2;
  EXPECT_EQ(said(), dev ? "negative: does nothing without true_cfg above 1" : "(no error)");
}

}  // namespace
}  // namespace halftone
