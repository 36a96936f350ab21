// halftone quantize --model as a user runs it.
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "halftone/io/safetensors_file.h"
#include "tests/cli/process.h"
#include "tests/support/tiny_zimage.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::Cli;
using test::expect_one_line;
using test::Result;
using testing::HasSubstr;

class CliQuantizeModel : public Cli {
 protected:
  void SetUp() override {
    const fs::path data = HALFTONE_TEST_DATA;
    const SafetensorsFile fixture(data / "zimage" / "pipeline_guided.safetensors");
    test::write_zimage_folder(dir_ / "model", json::parse(fixture.metadata().at("case")),
                              data / "tokenizer" / "tokenizer.json");
    std::ofstream(path("prompts.txt")) << "a red circle\ntwo squares\n";
  }
  Result quantize(std::initializer_list<std::string> more) {
    std::vector<std::string> all = {"quantize", "--model", path("model")};
    all.insert(all.end(), more);
    return run(all);
  }
  Result calibrated(const std::string& format, const std::string& out,
                    std::initializer_list<std::string> more = {}) {
    std::vector<std::string> all = {
        "quantize",          "--model", path("model"), "--format", format, "--calibrate",
        path("prompts.txt"), "--size",  "24x16",       "--steps",  "3",    "-o",
        path(out),           "--json"};
    all.insert(all.end(), more);
    return run(all);
  }
  std::string bytes_of(const std::string& file) const {
    std::ifstream in(path(file), std::ios::binary);
    std::stringstream text;
    text << in.rdbuf();
    return text.str();
  }
  static constexpr const char* kWeights = "/transformer/diffusion_pytorch_model.safetensors";
};

TEST_F(CliQuantizeModel, CalibratesCertifiesAndRunsFromTheFolder) {
  const Result result = calibrated("nvfp4", "out");
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  const json report = json::parse(result.out);
  EXPECT_EQ(report["formats"]["nvfp4"]["weights"], 28);
  const double cosine = report["certificate"]["velocity_cosine"]["mean"];
  EXPECT_GT(cosine, 0.5);
  EXPECT_LT(cosine, 0.99999);
  const SafetensorsFile file(path("out") + kWeights);
  const json certificate = json::parse(file.metadata().at("halftone.certificate"));
  EXPECT_EQ(certificate, report["certificate"]);
  EXPECT_EQ(certificate["model_hash"], report["model_hash"]);
  EXPECT_NE(file.find("layers.0.attention.to_q.weight_input_scale"), nullptr);
  EXPECT_TRUE(fs::exists(path("out/recipe.toml")));
  EXPECT_FALSE(fs::exists(path("out.calibration.safetensors")));
  const json ranges = json::parse(bytes_of("out/calibration.json"));
  EXPECT_EQ(ranges["inputs"]["layers.0.attention.to_q.weight"]["amax"].size(), 3u);

  const auto used = [&](const std::string& precision) {
    const Result made = run({"generate", "x", "--model", path("out"), "--size", "24x16", "--steps",
                             "2", "--precision", precision, "-o", path("x.png"), "--json"});
    EXPECT_EQ(made.code, 0) << made.err;
    return json::parse(made.out)["precision"];
  };
  EXPECT_EQ(used("stored")["used"], "nvfp4");
  EXPECT_EQ(used("auto")["used"], "bf16");
  EXPECT_THAT(used("auto")["why"], HasSubstr("nvfp4 is not native here"));
}

TEST_F(CliQuantizeModel, ARecipeDoesTheSameAgain) {
  ASSERT_EQ(calibrated("fp8", "one", {"--exclude", "layers.0.*"}).code, 0);
  const Result again = quantize({"--recipe", path("one/recipe.toml"), "-o", path("two")});
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(bytes_of("one/recipe.toml"), bytes_of("two/recipe.toml"));
  const SafetensorsFile one(path("one") + kWeights), two(path("two") + kWeights);
  for (const TensorEntry& tensor : one.tensors()) {
    ASSERT_NE(two.find(tensor.name), nullptr) << tensor.name;
    EXPECT_TRUE(std::ranges::equal(one.bytes(tensor), two.bytes(*two.find(tensor.name))))
        << tensor.name;
  }
  EXPECT_EQ(one.find("layers.0.attention.to_q.weight")->dtype, DType::kBF16);
}

TEST_F(CliQuantizeModel, ABudgetIsKeptAndTheCurveShown) {
  const Result result =
      calibrated("nvfp4", "out",
                 {"--budget", "cosine=0.995", "--certify", "0", "--exclude", "*feed_forward.w2*"});
  ASSERT_EQ(result.code, 0) << result.err;
  const json report = json::parse(result.out);
  EXPECT_GE(report["search"]["measured_cosine"].get<double>(), 0.995);
  EXPECT_TRUE(report["search"]["within_budget"]);
  EXPECT_GT(report["search"]["curve"].size(), 3u);
  EXPECT_FALSE(report.contains("certificate"));
  for (const json& group : report["search"]["groups"]) {
    EXPECT_THAT(group["weights"][0], testing::Not(HasSubstr(".w2.")));
  }
}

TEST_F(CliQuantizeModel, OtherDialectsRunTheSame) {
  const auto latents = [&](const std::string& folder) {
    const Result made = run({"generate", "x", "--model", path(folder), "--size", "24x16", "--steps",
                             "2", "--precision", "stored", "--save-latents", path("l.safetensors"),
                             "-o", path("x.png")});
    EXPECT_EQ(made.code, 0) << made.err;
    return bytes_of("l.safetensors");
  };
  ASSERT_EQ(calibrated("nvfp4", "ours", {"--certify", "0"}).code, 0);
  const std::string expected = latents("ours");
  for (const char* dialect : {"comfyui", "modelopt", "compressed-tensors", "torchao"}) {
    const Result result = calibrated("nvfp4", dialect, {"--certify", "0", "--dialect", dialect});
    ASSERT_EQ(result.code, 0) << result.err;
    EXPECT_EQ(latents(dialect), expected) << dialect;
  }
}

TEST_F(CliQuantizeModel, WrongUsageIsOneLine) {
  expect_one_line(quantize({"-o", path("x")}), 2, "--format: is needed, or a --recipe");
  expect_one_line(quantize({"-f", "fp8", "--budget", "speed=3", "-o", path("x")}), 2, "--budget");
  expect_one_line(quantize({"-f", "fp8", "-o", path("model")}), 2, "the output is the input");
  expect_one_line(run({"quantize", "--model", path("nothing"), "-f", "fp8", "-o", path("x")}), 2,
                  "is no folder");
  std::ofstream(path("bad.toml")) << "version = 1\nfamily = 3\n";
  expect_one_line(quantize({"--recipe", path("bad.toml"), "-o", path("x")}), 1,
                  "'family' is not a string");
  std::ofstream(path("other.toml")) << "version = 1\nfamily = \"sdxl\"\nformat = \"fp8\"\n";
  expect_one_line(quantize({"--recipe", path("other.toml"), "-o", path("x")}), 1,
                  "is a recipe for sdxl, not for z-image");
}

}  // namespace
}  // namespace halftone
