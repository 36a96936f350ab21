// The program as a user runs it: a process, its output and its exit code.
#include "halftone/cli/cli.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "halftone/io/png.h"
#include "halftone/io/safetensors_file.h"
#include "halftone/io/safetensors_writer.h"
#include "tests/support/procedural.h"
#include "tests/support/run_graph.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tensors.h"
#include "tests/support/tiny_zimage.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::HasSubstr;
using testing::StartsWith;

struct Result {
  int code;
  std::string out, err;
};

class Cli : public testing::Test {
 protected:
  Result run(const std::vector<std::string>& arguments) {
    const fs::path out = dir_ / "stdout.txt", err = dir_ / "stderr.txt";
    const pid_t child = start(arguments, out, err);
    int status = 0;
    ::waitpid(child, &status, 0);
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status), test::read_file(out),
            test::read_file(err)};
  }

  static pid_t start(const std::vector<std::string>& arguments, const fs::path& out,
                     const fs::path& err) {
    const pid_t child = ::fork();
    if (child != 0) return child;
    std::vector<char*> argv = {const_cast<char*>(HALFTONE_PROGRAM)};
    for (const auto& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
    argv.push_back(nullptr);
    ::dup2(::open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), 1);
    ::dup2(::open(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), 2);
    ::execv(HALFTONE_PROGRAM, argv.data());
    ::_exit(127);
  }

  std::string write_model() {
    const fs::path path = dir_ / "model.safetensors";
    write_safetensors(path,
                      {{"a.weight", test::bf16_tensor({32, 64}, test::gaussians(1, 32 * 64))},
                       {"a.bias", test::f32_tensor({32}, test::gaussians(2, 32))}},
                      {{"format", "pt"}});
    return path.string();
  }
  std::string path(const std::string& name) const { return (dir_ / name).string(); }

  test::TempDir dir_;
};

// One line that says what is wrong, and nothing on stdout.
void expect_one_line(const Result& result, int code, const std::string& reason) {
  EXPECT_EQ(result.code, code) << result.err;
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  EXPECT_THAT(result.err, StartsWith("halftone"));
  EXPECT_THAT(result.err, HasSubstr(reason));
}

TEST_F(Cli, HelpOfEveryCommandTeachesIt) {
  EXPECT_EQ(run({"--help"}).code, 0);
  EXPECT_THAT(run({"--help"}).out, HasSubstr("quantize"));
  EXPECT_THAT(run({"--version"}).out, StartsWith("halftone "));
  for (const char* command : {"generate", "info", "inspect", "quantize"}) {
    const Result result = run({command, "--help"});
    EXPECT_EQ(result.code, 0);
    EXPECT_THAT(result.out, HasSubstr("--json"));
    EXPECT_EQ(result.err, "");
  }
  EXPECT_THAT(run({"quantize", "--help"}).out,
              HasSubstr("halftone quantize model.safetensors --format fp8 -o"));
}

TEST_F(Cli, WrongUsageIsOneLineAndExitCode2) {
  expect_one_line(run({}), 2, "ubcommand is required");
  expect_one_line(run({"paint"}), 2, "there is no command 'paint'");
  expect_one_line(run({"--foo"}), 2, "there is no option '--foo'");
  expect_one_line(run({"inspect"}), 2, "path is required");
  expect_one_line(run({"info", "--jsn"}), 2, "--jsn");
  expect_one_line(run({"quantize", "x", "-o", "y"}), 2, "--format is required");
  expect_one_line(run({"quantize", "x", "-o", "y", "--format", "fp3"}), 2, "fp3");
  expect_one_line(run({"quantize", "x", "-o", "y", "--format", "fp8", "--threads", "0"}), 2,
                  "--threads");
}

TEST_F(Cli, FailuresAreOneLineAndExitCode1) {
  expect_one_line(run({"inspect", path("none.safetensors")}), 1, "none.safetensors: no such file");
  expect_one_line(run({"inspect", dir_.path().string()}), 1, "hold a .safetensors file");
  test::write_file(dir_ / "bad.safetensors", "not a safetensors file");
  expect_one_line(run({"inspect", path("bad.safetensors")}), 1, "bad.safetensors: header length");
  expect_one_line(run({"quantize", path("bad.safetensors"), "--format", "fp8", "-o", path("o")}), 1,
                  "bad.safetensors");
  const std::string model = write_model();
  expect_one_line(run({"quantize", model, "--format", "fp8", "-o", path("no/such/o")}), 1,
                  "no/such/o");
  expect_one_line(run({"quantize", model, "--format", "fp8", "-o", model}), 2,
                  "the output is the input");
  expect_one_line(run({"quantize", dir_.path().string(), "--format", "fp8", "-o", path("o")}), 1,
                  "is a folder");
}

TEST_F(Cli, InfoAsTextAndJson) {
  EXPECT_THAT(run({"info"}).out, HasSubstr("nvfp4"));
  const Result result = run({"info", "--json"});
  const json info = json::parse(result.out);
  EXPECT_EQ(result.err, "");
  EXPECT_EQ(info["cpu"]["formats"]["fp32"]["support"], "native");
  EXPECT_EQ(info["cpu"]["formats"]["nvfp4"]["support"], "emulated");
  EXPECT_TRUE(info["gpus"].is_array());
  EXPECT_GE(info["cpu"]["threads"].get<int>(), 1);
}

TEST_F(Cli, InspectAsTextAndJson) {
  const std::string model = write_model();
  const std::string text = run({"inspect", model}).out;
  EXPECT_THAT(text, HasSubstr("a.weight"));
  EXPECT_THAT(text, HasSubstr("[32, 64]"));
  const json one = json::parse(run({"inspect", model, "--json"}).out);
  EXPECT_EQ(one["tensors"][1]["name"], "a.weight");
  EXPECT_EQ(one["tensors"][1]["shape"], json({32, 64}));
  EXPECT_EQ(one["tensors"][1]["dtype"], "BF16");
  EXPECT_EQ(one["metadata"]["format"], "pt");
  EXPECT_EQ(one["quantization"]["dialect"], "none");
  EXPECT_FALSE(json::parse(run({"inspect", model, "--json", "--summary"}).out).contains("tensors"));
}

TEST_F(Cli, InspectOfAPipelineFolderShowsItsComponents) {
  fs::create_directories(dir_ / "pipe/vae");
  fs::create_directories(dir_ / "pipe/transformer");
  fs::create_directories(dir_ / "pipe/scheduler");
  fs::copy_file(write_model(), dir_ / "pipe/vae/model.safetensors");
  fs::copy_file(write_model(), dir_ / "pipe/transformer/model.safetensors");
  const json parts = json::parse(run({"inspect", path("pipe"), "--json"}).out);
  ASSERT_EQ(parts["components"].size(), 2u);
  EXPECT_EQ(parts["components"][0]["component"], "transformer");
  EXPECT_THAT(run({"inspect", path("pipe")}).out, HasSubstr("vae: "));
  // A component that cannot be read does not hide the others.
  test::write_file(dir_ / "pipe/vae/second.safetensors", "");
  const Result broken = run({"inspect", path("pipe")});
  EXPECT_EQ(broken.code, 0);
  EXPECT_THAT(broken.out, HasSubstr("vae: cannot be read: "));
  EXPECT_THAT(broken.out, HasSubstr("a.weight"));
}

TEST_F(Cli, QuantizeEveryFormatAndInspectIt) {
  const std::string model = write_model();
  for (const char* format : {"fp8", "fp8-tensor", "mxfp8", "nvfp4"}) {
    const Result result =
        run({"quantize", model, "--format", format, "-o", path("out.safetensors"), "--json"});
    EXPECT_EQ(result.err, "");
    const json report = json::parse(result.out);
    EXPECT_EQ(report["converted"].size(), 1u) << format;
    EXPECT_GT(report["relative_error"]["worst"].get<double>(), 0.01);
    EXPECT_LT(report["relative_error"]["worst"].get<double>(), 0.12);
    EXPECT_LT(report["converted_bytes"]["after"].get<int>(),
              report["converted_bytes"]["before"].get<int>());
    const json inspected = json::parse(run({"inspect", path("out.safetensors"), "--json"}).out);
    EXPECT_EQ(inspected["quantization"]["dialect"], "halftone");
    EXPECT_EQ(inspected["quantization"]["layers"][format], 1);
  }
  const Result text = run(
      {"quantize", model, "--format", "fp8", "-o", path("out.safetensors"), "--exclude", "typo"});
  EXPECT_EQ(text.code, 0);
  EXPECT_THAT(text.out, HasSubstr("fp8 weights"));
  EXPECT_THAT(text.err, HasSubstr("pattern 'typo' matches no"));
}

TEST_F(Cli, CtrlCLeavesNothingBehind) {
  // In this process, so that the interrupt comes at a known moment.
  const std::string model = write_model(), out = path("out.safetensors");
  int asked = 0;
  cli::Context context;
  context.interrupted = [&] { return ++asked == 2; };
  const char* argv[] = {"halftone", "quantize", model.c_str(), "--format",
                        "fp8",      "-o",       out.c_str()};
  testing::internal::CaptureStderr();
  EXPECT_EQ(cli::run(7, argv, context), 130);
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "halftone quantize: interrupted; nothing was written\n");
  EXPECT_EQ(asked, 2);
  for (const auto& item : fs::directory_iterator(dir_.path())) {
    EXPECT_EQ(item.path().filename(), "model.safetensors");
  }
}

TEST_F(Cli, AFullStandardOutputIsNotSuccess) {
  const pid_t child = start({"info"}, "/dev/full", dir_ / "e");
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 1);
  EXPECT_THAT(test::read_file(dir_ / "e"), HasSubstr("standard output: cannot write"));
}

// ---- generate -----------------------------------------------------------------------------------

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
  expect_one_line(run(arguments({"x", "--device", "cuda", "--strict"})), 3, "cuda was asked for");
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
