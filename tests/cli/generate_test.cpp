// halftone generate as a user runs it.
#include <cmath>
#include <nlohmann/json.hpp>

#include "halftone/io/png.h"
#include "halftone/io/safetensors_file.h"
#include "tests/cli/process.h"
#include "tests/support/procedural.h"
#include "tests/support/run_graph.h"
#include "tests/support/tiny_zimage.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::Cli;
using test::expect_one_line;
using test::Result;
using testing::HasSubstr;

class CliGenerate : public Cli {
 protected:
  void SetUp() override {
    const fs::path data = HALFTONE_TEST_DATA;
    const SafetensorsFile fixture(data / "zimage" / "pipeline_guided.safetensors");
    case_ = json::parse(fixture.metadata().at("case"));
    expected_ = test::floats(fixture.tensor("latents.3"));
    test::write_zimage_folder(dir_ / "model", case_, data / "tokenizer" / "tokenizer.json");
    const Tensor noise = test::procedural_uniform("guided.noise", {2, 16, 8, 12}, std::sqrt(3.0f));
    write_safetensors(dir_ / "noise.safetensors", {{"latents", noise}});
  }
  std::vector<std::string> arguments(std::initializer_list<std::string> more) const {
    std::vector<std::string> all = {"generate", "--model", path("model"), "--size", "24x16",
                                    "--steps",  "4"};
    all.insert(all.end(), more);
    return all;
  }

  json case_;
  std::vector<float> expected_;
};

TEST_F(CliGenerate, LatentsFromTheCommandLineEqualDiffusers) {
  const Result result = run(arguments(
      {"--prompt", case_["prompt"], "--negative", case_["negative"], "--guidance", "2", "--count",
       "2", "--batch", "2", "--noise", path("noise.safetensors"), "--save-latents",
       path("latents.safetensors"), "-o", path("out.png"), "--json", "--precision", "fp32"}));
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  const json report = json::parse(result.out);
  EXPECT_EQ(report["family"], "z-image");
  EXPECT_EQ(report["precision"]["used"], "fp32");
  EXPECT_EQ(report["images"], json({path("out-1.png"), path("out-2.png")}));
  EXPECT_GT(report["seconds"]["denoise"].get<double>(), 0);
  EXPECT_GT(report["peak_bytes"]["planned"].get<int64_t>(), 0);
  EXPECT_EQ(report["model_hash"].get<std::string>().size(), 32u);
  const SafetensorsFile latents(path("latents.safetensors"));
  EXPECT_LE(test::relative_error(test::floats(latents.tensor("latents")), expected_), 1e-4);
  const PngImage image = read_png(path("out-2.png"));
  EXPECT_EQ(image.width, 24);
  EXPECT_THAT(image.text,
              testing::Contains(std::pair<std::string, std::string>("prompt", case_["prompt"])));
  EXPECT_THAT(image.text, testing::Contains(std::pair<std::string, std::string>("seed", "1")));
}

TEST_F(CliGenerate, APositionalPromptNamesTheFileAndBf16IsNear) {
  const auto latents = [&](const std::string& precision) {
    const Result result =
        run(arguments({"a red apple!", "--seed", "3", "--precision", precision, "--save-latents",
                       path("l.safetensors"), "-o", path("x.png")}));
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr("seed 3"));
    return test::floats(SafetensorsFile(path("l.safetensors")).tensor("latents"));
  };
  const double error = test::relative_error(latents("bf16"), latents("fp32"));
  EXPECT_GT(error, 1e-4);  // it did round
  EXPECT_LT(error, 3e-2);
}

TEST_F(CliGenerate, FallbacksAreSaidAndStrictForbidsThem) {
  const Result fell = run(arguments({"x", "--device", "cuda", "-o", path("x.png")}));
  EXPECT_EQ(fell.code, 0);
  EXPECT_THAT(fell.out, HasSubstr("fallback: cpu instead of cuda: "));
  expect_one_line(run(arguments({"x", "--device", "cuda", "--strict"})), 3, "cpu instead of cuda");
}

TEST_F(CliGenerate, BadInputIsOneLine) {
  expect_one_line(run({"generate", "--model", path("none"), "x"}), 1, "none: no such model");
  expect_one_line(run({"generate", "--model", dir_.path().string(), "x"}), 1,
                  "is not a known family");
  expect_one_line(run({"generate", "x"}), 2, "--model is required");
  expect_one_line(run({"generate", "--model", path("model")}), 2, "prompt is required");
  expect_one_line(run({"generate", "--model", path("model"), "x", "--size", "25x16"}), 2,
                  "--size: 25x16 is not allowed");
  expect_one_line(run({"generate", "--model", path("model"), "x", "--size", "big"}), 2,
                  "'big' is not WIDTHxHEIGHT");
  expect_one_line(run(arguments({"x", "--precision", "fp3"})), 2, "fp3");
  expect_one_line(run(arguments({"x", "--device", "tpu"})), 2, "tpu");
  expect_one_line(run(arguments({"x", "--noise", path("none")})), 1, "none: no such file");
  expect_one_line(run(arguments({std::string(3000, 'z')})), 2, "tokens are more than the 512");
}

}  // namespace
}  // namespace halftone
