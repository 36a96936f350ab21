// The program as a user runs it: a process, its output and its exit code.
#include "halftone/cli/cli.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <regex>

#include "tests/cli/process.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::Cli;
using test::expect_one_line;
using test::Result;
using testing::HasSubstr;
using testing::StartsWith;

TEST_F(Cli, HelpOfEveryCommandTeachesIt) {
  EXPECT_EQ(run({"--help"}).code, 0);
  EXPECT_THAT(run({"--help"}).out, HasSubstr("quantize"));
  EXPECT_THAT(run({"--version"}).out, StartsWith("halftone "));
  for (const char* command : {"convert", "generate", "info", "inspect", "quantize"}) {
    const Result result = run({command, "--help"});
    EXPECT_EQ(result.code, 0);
    EXPECT_THAT(result.out, HasSubstr("--json"));
    EXPECT_EQ(result.err, "");
  }
  EXPECT_THAT(run({"quantize", "--help"}).out,
              HasSubstr("halftone quantize model.safetensors --format fp8 -o"));
}

TEST_F(Cli, HelpSaysWhichModelsTakeWhichScheduler) {
  for (const char* command : {"generate", "sheet", "compare", "quantize"}) {
    const std::string help =
        std::regex_replace(run({command, "--help"}).out, std::regex("\\s+"), " ");
    EXPECT_THAT(help, HasSubstr("flow models, as all but SDXL are: flow-euler, dpm++-2m, "
                                "dpm++-2m-sde, unipc; of models that predict noise, v or the "
                                "sample: euler, euler-a, ddim, dpm++-2m, dpm++-2m-karras, "
                                "dpm++-2m-sde, unipc "))
        << command;
  }
}

TEST_F(Cli, WrongUsageIsOneLineAndExitCode2) {
  expect_one_line(run({}), 2, "ubcommand is required");
  expect_one_line(run({"paint"}), 2, "there is no command 'paint'");
  expect_one_line(run({"--foo"}), 2, "there is no option '--foo'");
  expect_one_line(run({"inspect"}), 2, "path is required");
  expect_one_line(run({"info", "--jsn"}), 2, "--jsn");
  expect_one_line(run({"quantize", "x", "-o", "y"}), 2, "--format: is needed");
  expect_one_line(run({"quantize", "x", "-o", "y", "--format", "fp8", "--budget", "auto"}), 2,
                  "--budget: needs --model");
  for (const std::string flag :
       {"--samples=4", "--minimize=time", "--search-points=8", "--max-memory=1G", "--certify=4",
        "--size=16x16", "--steps=3", "--guidance=1", "--scheduler=unipc", "--seed=1",
        "--device=cuda", "--rounding=compensated", "--activations=static", "--split-inputs=on"}) {
    expect_one_line(run({"quantize", "x", "-o", "y", "--format", "fp8", flag}), 2,
                    flag.substr(0, flag.find('=')) + ": needs --model");
  }
  expect_one_line(
      run({"quantize", "--model", "x", "-o", "y", "--recipe", "r.toml", "--split-inputs", "off"}),
      2, "--split-inputs excludes --recipe");
  expect_one_line(run({"generate", "a cat", "--skip-layer-scale", "3"}), 2,
                  "--skip-layer-scale requires --skip-layers");
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
  // A component that cannot be read does not hide the others, and is not passed over.
  test::write_file(dir_ / "pipe/vae/second.safetensors", "");
  const Result broken = run({"inspect", path("pipe")});
  EXPECT_EQ(broken.code, 1);
  EXPECT_THAT(broken.out, HasSubstr("vae: cannot be read: "));
  EXPECT_THAT(broken.out, HasSubstr("a.weight"));
  EXPECT_THAT(broken.err, HasSubstr("pipe: broken: vae ("));
  const Result as_json = run({"inspect", path("pipe"), "--json"});
  EXPECT_EQ(as_json.code, 1);
  EXPECT_THAT(as_json.err, HasSubstr("pipe: broken: vae ("));
  const json shown = json::parse(as_json.out)["components"];
  EXPECT_EQ(shown[0]["tensor_count"], 2);
  EXPECT_THAT(shown[1]["error"].get<std::string>(), HasSubstr("vae: holds 0 indexes"));
}

TEST_F(Cli, InspectShowsTheTensorsOfAFileWithABrokenMarkerAndFails) {
  const auto inspect = [&](const std::string& said) {
    write_safetensors(dir_ / "m.safetensors", {{"a.weight", Tensor::zeros(DType::kU8, {2, 2})}},
                      {{"halftone.quantization", said}});
    return run({"inspect", path("m.safetensors")});
  };
  const Result broken = inspect(R"({"version":1,"tensors":7})");
  EXPECT_EQ(broken.code, 1);
  EXPECT_THAT(broken.out, HasSubstr("a.weight"));
  EXPECT_THAT(broken.err, HasSubstr("m.safetensors: metadata halftone.quantization: 'tensors'"));
  const Result newer = inspect(R"({"version":2})");
  EXPECT_EQ(newer.code, 0);
  EXPECT_THAT(newer.out, HasSubstr("is not of version 1"));
}

TEST_F(Cli, QuantizeEveryFormatAndInspectIt) {
  const std::string model = write_model();
  for (const char* format :
       {"fp8", "fp8-tensor", "mxfp8", "nvfp4", "nvfp4-4over6", "nvfp4-16x16"}) {
    const Result result =
        run({"quantize", model, "--format", format, "-o", path("out.safetensors"), "--json"});
    EXPECT_EQ(result.err, "");
    const json report = json::parse(result.out);
    EXPECT_EQ(report["converted"].size(), 1u) << format;
    EXPECT_GT(report["relative_error"]["worst"].get<double>(), 0.01);
    EXPECT_LT(report["relative_error"]["worst"].get<double>(), 0.13);
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
  const Result foreign = run({"quantize", model, "--format", "nvfp4", "--dialect", "comfyui", "-o",
                              path("comfy.safetensors")});
  EXPECT_EQ(foreign.code, 0) << foreign.err;
  const json comfy = json::parse(run({"inspect", path("comfy.safetensors"), "--json"}).out);
  EXPECT_EQ(comfy["quantization"]["dialect"], "comfyui");
  EXPECT_FALSE(std::filesystem::exists(path("comfy.safetensors.halftone")));
  // What a dialect cannot hold is refused before anything is read.
  expect_one_line(run({"quantize", path("none.safetensors"), "--format", "fp8", "--dialect",
                       "comfyui", "-o", path("x")}),
                  1, "--dialect: fp8 cannot be written for comfyui");
}

TEST_F(Cli, ConvertThereAndBackAndInspectNamesTheDialect) {
  const std::string model = write_model(), ours = path("ours.safetensors");
  ASSERT_EQ(run({"quantize", model, "--format", "nvfp4", "-o", ours}).code, 0);
  for (const char* dialect : {"comfyui", "modelopt", "compressed-tensors", "torchao"}) {
    const std::string theirs = path("theirs.safetensors"), back = path("back.safetensors");
    const json report =
        json::parse(run({"convert", ours, "--to", dialect, "-o", theirs, "--json"}).out);
    EXPECT_EQ(report["from"], "halftone");
    EXPECT_EQ(report["converted"][0]["name"], "a.weight");
    EXPECT_EQ(report["copied"]["tensors"], 1);
    const json inspected = json::parse(run({"inspect", theirs, "--json"}).out);
    EXPECT_EQ(inspected["quantization"]["dialect"], dialect);
    EXPECT_EQ(inspected["quantization"]["layers"]["nvfp4"], 1) << dialect;
    const Result text = run({"convert", theirs, "--to", "halftone", "-o", back});
    EXPECT_THAT(text.out, HasSubstr(std::string("dialect      ") + dialect + " to halftone"));
    EXPECT_THAT(text.out, HasSubstr("converted    1 x nvfp4"));
    EXPECT_EQ(json::parse(run({"inspect", back, "--json"}).out)["metadata"],
              json::parse(run({"inspect", ours, "--json"}).out)["metadata"]);
  }
  expect_one_line(run({"convert", ours, "--to", "gguf", "-o", "x"}), 2, "gguf");
  expect_one_line(run({"convert", ours, "--to", "comfyui", "-o", "x", "--nibbles", "both"}), 2,
                  "--nibbles");
  expect_one_line(run({"convert", ours, "--to", "comfyui", "-o", ours}), 2,
                  "the output is the input");
  expect_one_line(run({"convert", ours, "--to", "comfyui", "-o", path("x"), "--nibbles", "high"}),
                  2, "cannot be overruled");
  expect_one_line(run({"convert", model, "--to", "comfyui", "-o", path("x")}), 1,
                  "holds no quantized weight");
}

TEST_F(Cli, VariantsAreNvfp4ForOtherToolsAndComeBackAsTheyWere) {
  const std::string model = write_model();
  for (const char* variant : {"nvfp4-4over6", "nvfp4-16x16"}) {
    const std::string ours = path(variant);
    ASSERT_EQ(run({"quantize", model, "--format", variant, "-o", ours}).code, 0);
    for (const char* dialect : {"comfyui", "modelopt", "compressed-tensors", "torchao"}) {
      const std::string theirs = path("theirs"), back = path("back");
      ASSERT_EQ(run({"convert", ours, "--to", dialect, "-o", theirs}).code, 0) << dialect;
      ASSERT_EQ(run({"convert", theirs, "--to", "halftone", "-o", back}).code, 0) << dialect;
      EXPECT_EQ(test::read_file(back), test::read_file(ours)) << dialect;
      const json inspected = json::parse(run({"inspect", theirs, "--json"}).out);
      EXPECT_EQ(inspected["quantization"]["dialect"], dialect);
    }
  }
  EXPECT_NE(test::read_file(path("nvfp4-4over6")), test::read_file(path("nvfp4-16x16")));
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

}  // namespace
}  // namespace halftone
