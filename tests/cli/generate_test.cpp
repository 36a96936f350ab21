// halftone generate as a user runs it.
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "halftone/engine/step_cache.h"
#include "halftone/io/png.h"
#include "halftone/io/safetensors_file.h"
#include "tests/cli/process.h"
#include "tests/support/procedural.h"
#include "tests/support/run_graph.h"
#include "tests/support/sanitizers.h"
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

  json case_, report_;
  std::string out_;
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
  EXPECT_GT(report["seconds"]["first_step"].get<double>(), 0);
  EXPECT_GT(report["seconds"]["denoise"], report["seconds"]["first_step"]);
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

TEST_F(CliGenerate, AStepCacheIsOffUnlessAskedForAndTold) {
  const auto made = [&](std::initializer_list<std::string> more) {
    std::vector<std::string> all = arguments({"a cat", "-o", path("out.png"), "--json"});
    all.insert(all.end(), more);
    const Result result = run(all);
    EXPECT_EQ(result.code, 0) << result.err;
    return json::parse(result.out);
  };
  EXPECT_FALSE(made({}).contains("cache"));
  const json report = made({"--cache", "1", "--count", "2"});
  EXPECT_EQ(report["cache"]["asked"], "1");
  EXPECT_EQ(report["cache"]["threshold"], 1);
  ASSERT_EQ(report["cache"]["pictures"].size(), 2u);
  const auto steps = report["cache"]["pictures"][0]["reused_steps"].get<std::vector<int>>();
  ASSERT_FALSE(steps.empty());
  EXPECT_GT(steps.front(), 1);
  EXPECT_LT(steps.back(), 4);
  EXPECT_THAT(read_png(path("out-2.png")).text,
              testing::Contains(std::pair<std::string, std::string>("cache", "1")));
  const Result text = run(arguments({"a cat", "-o", path("out.png"), "--cache", "1"}));
  EXPECT_THAT(text.out, HasSubstr(fmt::format("step cache 1: {} of 4 steps reused: {}\n",
                                              steps.size(), steps_text(steps))));
  for (const char* wrong : {"1.5", "-0.1", "nan", "Auto", "", "0x1p-3"}) {
    expect_one_line(run(arguments({"a cat", "--cache", wrong})), 2,
                    "--cache: is neither auto, off");
  }
  expect_one_line(run(arguments({"a cat", "--cache-ssim", "0.9"})), 2, "goes with --cache auto");
}

// It is measured once, and kept where HALFTONE_CACHE says.
TEST_F(CliGenerate, AStepCacheMayBeChosenByItsPictures) {
  setenv("HALFTONE_CACHE", path("cache").c_str(), 1);
  const auto why = [&](const char* least) {
    const Result result = run(arguments(
        {"a cat", "-o", path("out.png"), "--json", "--cache", "auto", "--cache-ssim", least}));
    EXPECT_EQ(result.code, 0) << result.err;
    const json report = json::parse(result.out);
    EXPECT_GT(report["cache"]["threshold"].get<double>(), 0);
    return report["cache"]["why"].get<std::string>();
  };
  const std::string first = why("0");
  EXPECT_THAT(first, HasSubstr("step cache 1: SSIM at least"));
  EXPECT_THAT(first, HasSubstr("of the steps reused on calibration prompts (bound 0)"));
  EXPECT_EQ(why("0"), first + ", measured earlier");
  for (const auto& entry : fs::directory_iterator(path("cache"))) {
    test::write_file(entry.path(), test::read_file(entry.path()).substr(0, 40));
  }
  EXPECT_EQ(why("0"), first) << "what is damaged is measured again";
  // No answer can be read there: as if there were none.
  for (const auto& entry : fs::directory_iterator(path("cache"))) {
    fs::remove(entry.path());
    fs::create_directory(entry.path());
  }
  EXPECT_EQ(why("0"), first);
  const Result one =
      run(arguments({"a cat", "-o", path("out.png"), "--cache", "auto", "--cache-ssim", "1"}));
  EXPECT_THAT(one.out, HasSubstr("no step cache: none that keeps SSIM at 1"));
  const Result two = run({"generate", "--model", path("model"), "--size", "24x16", "--steps", "2",
                          "a cat", "-o", path("out.png"), "--cache", "auto"});
  EXPECT_THAT(two.out, HasSubstr("no step cache: the first and the last step are always computed"));
  // A run would fit; the pictures that are compared, of 9 MB, do not.
  const auto large = [&](const std::string& limit) {
    const Result result =
        run({"generate", "--model", path("model"), "--size", "192x192", "--steps", "3", "a cat",
             "-o", path("out.png"), "--json", "--cache", limit.empty() ? "1" : "auto",
             "--max-memory", limit.empty() ? "1G" : limit});
    EXPECT_EQ(result.code, 0) << result.err;
    return json::parse(result.out);
  };
  const auto peak = large("")["peak_bytes"]["planned"].get<int64_t>();
  constexpr int64_t kMore = 4 << 20;
  EXPECT_THAT(large(std::to_string(peak + kMore))["cache"]["why"].get<std::string>(),
              HasSubstr("no step cache: measuring one takes"));
  unsetenv("HALFTONE_CACHE");
}

TEST_F(CliGenerate, RecommendationsThatAreNotKnownOrBeyondReasonAreNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"guidance":1e300})", "halftone.json: 'guidance' 1e+300 is not in 0 .. 100"},
      {R"({"guidance":-1})", "halftone.json: 'guidance' -1 is not in 0 .. 100"},
      {R"({"steps":0})", "halftone.json: 'steps' 0 is not in 1 .. 1000"},
      {R"({"width":18446744073709551615})", "halftone.json: 'width' 18446744073709551615 is not"},
      {R"({"sampler":"heun"})", "halftone.json: 'sampler' is not known"},
      {R"({"width":25,"height":16})", "halftone.json: 'width' and 'height': 25x16 is not allowed"},
      {R"({"width":65536})", "halftone.json: 'width' and 'height': 65536x1024 is more than the "},
  };
  for (const auto& [content, reason] : cases) {
    test::write_file(path("model/halftone.json"), content);
    expect_one_line(run(arguments({"x"})), 1, reason);
  }
}

TEST_F(CliGenerate, PositionsThatTheModelHasNotAreNotTheFlagsFault) {
  json config = json::parse(test::read_file(path("model/transformer/config.json")));
  const auto with_positions = [&](const json& lengths, std::initializer_list<std::string> more) {
    config["axes_lens"] = lengths;
    test::write_file(path("model/transformer/config.json"), config.dump());
    return run(arguments(more));
  };
  expect_one_line(with_positions({16, 64, 64}, {"x"}), 1,
                  "transformer/config.json: 'axes_lens' begins with 16");
  expect_one_line(with_positions({512, 2, 2}, {"x"}), 2,
                  "24x16 is more than the 8x8 that transformer/config.json has positions for");
  const std::string prompt(200, 'q');
  expect_one_line(with_positions({40, 64, 64}, {prompt}), 2, "that 'axes_lens' of the model has");
  const Result negative = run(arguments({"x", "--guidance", "2", "--negative", prompt}));
  expect_one_line(negative, 2, "--negative: ");
  EXPECT_THAT(negative.err, HasSubstr("tokens are more than the 32 that 'axes_lens'"));
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
  const Result fell =
      run(arguments({"x", "--device", "cuda", "-o", path("x.png")}), test::hide_gpus);
  EXPECT_EQ(fell.code, 0) << fell.err;
  EXPECT_THAT(fell.out, HasSubstr("fallback: cpu instead of cuda: "));
  expect_one_line(run(arguments({"x", "--device", "cuda", "--strict"}), test::hide_gpus), 3,
                  "cpu instead of cuda");
}

TEST_F(CliGenerate, BlocksAreStreamedToGpusAlone) {
  const auto asked = [&](const char* blocks, bool strict) {
    std::vector<std::string> all = arguments(
        {"x", "--device", "cpu", "-o", path("s.png"), "--json", "--stream-blocks", blocks});
    if (strict) all.emplace_back("--strict");
    return run(all);
  };
  const Result result = asked("all", false);
  ASSERT_EQ(result.code, 0) << result.err;
  const json report = json::parse(result.out);
  EXPECT_EQ(report["stream_blocks"]["used"], "off");
  EXPECT_EQ(report["stream_blocks"]["blocks"], 0);
  EXPECT_THAT(report["fallbacks"][0].get<std::string>(), HasSubstr("off instead of all"));
  expect_one_line(asked("all", true), 3, "the CPU reads weights in place");
  expect_one_line(asked("half", false), 2, "'half' is not auto, off, all or a number");
  ASSERT_EQ(asked("off", true).code, 0);
}

TEST_F(CliGenerate, PrecisionsSayWhatRanAndCompilingChangesNothing) {
  const auto latents = [&](const std::string& precision, const std::string& compile) {
    const Result result =
        run(arguments({"x", "--precision", precision, "--compile", compile, "--save-latents",
                       path("l.safetensors"), "-o", path("x.png"), "--json"}));
    EXPECT_EQ(result.code, 0) << result.err;
    report_ = json::parse(result.out);
    return test::floats(SafetensorsFile(path("l.safetensors")).tensor("latents"));
  };
  const auto exact = latents("fp32", "on");
  EXPECT_EQ(report_["precision"]["how"], "native");
  for (const char* precision : {"bf16", "fp8", "fp8-tensor", "mxfp8", "nvfp4"}) {
    const auto on = latents(precision, "on");
    EXPECT_EQ(report_["precision"]["used"], precision);
    EXPECT_EQ(report_["precision"]["how"], "emulated");
    EXPECT_EQ(report_["fallbacks"], json::array());
    if (std::string(precision) != "bf16") {
      EXPECT_EQ(report_["precision"]["linears"][precision], 28);
      EXPECT_GT(report_["precision"]["kept"].size(), 5u);
    }
    EXPECT_EQ(latents(precision, "off"), on) << precision;
    EXPECT_EQ(report_["compile"]["used"], "off");
    EXPECT_GT(test::relative_error(on, exact), 1e-4) << precision;
  }
}

TEST_F(CliGenerate, TextPrecisionIsReportedAndInThePicture) {
  const Result result = run(arguments(
      {"x", "--text-precision", "fp8", "--precision", "fp32", "-o", path("x.png"), "--json"}));
  ASSERT_EQ(result.code, 0) << result.err;
  const json text = json::parse(result.out)["text_precision"];
  EXPECT_EQ(text["asked"], "fp8");
  EXPECT_EQ(text["used"], "fp8");
  ASSERT_EQ(text["encoders"].size(), 1u);
  EXPECT_EQ(text["encoders"][0]["folder"], "text_encoder");
  EXPECT_GT(text["encoders"][0]["linears"]["fp8"].get<int>(), 0);
  EXPECT_THAT(read_png(path("x.png")).text,
              testing::Contains(std::pair<std::string, std::string>("text_precision", "fp8")));
  expect_one_line(run(arguments({"x", "--text-precision", "stored"})), 2, "--text-precision");
}

TEST_F(CliGenerate, AQuantizedModelSaysWhenAnotherPrecisionWasAskedFor) {
  const fs::path file = dir_ / "model" / "transformer" / "diffusion_pytorch_model.safetensors";
  fs::rename(file, path("original.safetensors"));
  const Result quantized =
      run({"quantize", path("original.safetensors"), "--format", "nvfp4", "--include", "layers.*",
           "--exclude", "*adaLN*", "-o", file.string()});
  ASSERT_EQ(quantized.code, 0) << quantized.err;
  const auto used = [&](const std::string& precision) {
    const Result result =
        run(arguments({"x", "--precision", precision, "-o", path("x.png"), "--json"}));
    EXPECT_EQ(result.code, 0) << result.err;
    return json::parse(result.out)["precision"];
  };
  // Nothing is native on a CPU, and nothing says how good it is.
  EXPECT_EQ(used("auto")["used"], "bf16");
  EXPECT_THAT(used("auto")["why"], HasSubstr("nvfp4 is not native here"));
  EXPECT_EQ(used("stored")["used"], "nvfp4");
  EXPECT_EQ(used("nvfp4")["used"], "nvfp4");
  EXPECT_EQ(used("bf16")["used"], "bf16");
  EXPECT_THAT(used("bf16")["why"], HasSubstr("weights stored as nvfp4"));
  // What is stored stays what it is, and so does what the file left in bf16.
  EXPECT_EQ(used("fp8")["how"], "fallback");
  EXPECT_EQ(used("fp8")["used"], "nvfp4");
  expect_one_line(run(arguments({"x", "--precision", "fp8", "--strict"})), 3, "stored as");
}

TEST_F(CliGenerate, AdaptersAreAppliedAndStrayKeysListed) {
  const int64_t dim = case_["transformer"]["dim"];
  const std::string module = "diffusion_model.layers.0.attention.qkv.";
  write_safetensors(path("style.safetensors"),
                    {{module + "lora_down.weight", test::procedural_weight("a", {4, dim})},
                     {module + "lora_up.weight", test::procedural_weight("b", {3 * dim, 4})},
                     {"lora_te_x.lora_up.weight", test::procedural_weight("c", {3, 4})}});
  const auto latents = [&](std::initializer_list<std::string> more) {
    auto all = arguments({"x", "--save-latents", path("l.safetensors"), "-o", path("x.png")});
    all.insert(all.end(), more);
    const Result result = run(all);
    EXPECT_EQ(result.code, 0) << result.err;
    out_ = result.out;
    return test::floats(SafetensorsFile(path("l.safetensors")).tensor("latents"));
  };
  const auto plain = latents({});
  const auto half = latents({"--lora", path("style.safetensors") + ":0.5"});
  EXPECT_GT(test::relative_error(half, plain), 1e-3);
  EXPECT_THAT(out_, HasSubstr("1 of its tensors match nothing in the model: 'lora_te_x.lora_up"));
  EXPECT_NE(latents({"--lora", path("style.safetensors")}), half);
  // Half and half again is once.
  EXPECT_LE(test::relative_error(latents({"--lora", path("style.safetensors") + ":0.5", "--lora",
                                          path("style.safetensors") + ":0.5"}),
                                 latents({"--lora", path("style.safetensors")})),
            1e-5);
  expect_one_line(run(arguments({"x", "--lora", path("style.safetensors"), "--strict"})), 3,
                  "match nothing");
  expect_one_line(run(arguments({"x", "--lora", path("no.safetensors")})), 1, "no such file");
  expect_one_line(run(arguments({"x", "--lora", path("style.safetensors") + ":much"})), 2,
                  "is not FILE or FILE:STRENGTH");
}

TEST_F(CliGenerate, MemoryIsKnownBeforeTheRun) {
  const Result result = run(arguments({"x", "-o", path("x.png")}));
  EXPECT_THAT(result.out, testing::StartsWith("memory: "));
  expect_one_line(run(arguments({"x", "--max-memory", "10KiB"})), 1,
                  "10.0 KiB are allowed; a smaller size or batch needs less");
  expect_one_line(run(arguments({"x", "--max-memory", "lots"})), 2, "is not a size such as 8GiB");
}

// With a limit below what everything resident takes, the plan says what was done instead, and the
// picture is there.
TEST_F(CliGenerate, LessMemoryIsKeptToAndSaid) {
  const auto plan = [&](std::initializer_list<std::string> more) {
    std::vector<std::string> all = {"generate", "x", "--steps", "1", "-o", path("x.png"), "--json"};
    all.insert(all.end(), more);
    const Result result = run(all);
    EXPECT_EQ(result.code, 0) << result.err;
    return json::parse(result.out);
  };
  const json all = plan({"--model", path("model"), "--size", "24x16", "--text-precision", "fp8",
                         "--precision", "nvfp4"});
  const json kept = all["memory"]["plan"];
  EXPECT_EQ(kept["rung"], "resident");
  EXPECT_EQ(kept["why"], "");
  EXPECT_EQ(kept["arrangements"][1]["rung"], "turns");
  EXPECT_LT(kept["arrangements"][1]["peak"], kept["peak"]);
  EXPECT_EQ(all["peak_bytes"]["planned"], kept["peak"]);
  EXPECT_EQ(kept["parts"]["text_encoders"][0]["precision"], "fp8");

  // 512 pixels make a tile; this is more, one way, of the model that ships.
  const json in_tiles = plan({"--size", "640x16", "--vae-tiles", "on"})["memory"]["plan"];
  EXPECT_TRUE(in_tiles["tiles"]);
  EXPECT_EQ(in_tiles["rung"], "resident");  // as it was asked for
  EXPECT_THAT(read_png(path("x.png")).text, testing::Contains(testing::Key("vae_tiles")));
  const json whole = plan({"--size", "640x16", "--vae-tiles", "off"})["memory"]["plan"];
  EXPECT_FALSE(whole["tiles"]);
  EXPECT_LT(in_tiles["parts"]["decoding_in_tiles"]["shared"], whole["parts"]["decoding"]["shared"]);
  EXPECT_THAT(read_png(path("x.png")).text,
              testing::Not(testing::Contains(testing::Key("vae_tiles"))));
}

TEST_F(CliGenerate, ASingleFileNeedsABase) {
  const std::string file = path("model/transformer/diffusion_pytorch_model.safetensors");
  expect_one_line(run({"generate", "--model", file, "x"}), 2, "--base: is needed");
  expect_one_line(run({"generate", "--model", file, "--base", path("nowhere"), "x"}), 1,
                  "nowhere: no such folder");
  expect_one_line(run({"generate", "--model", path("noise.safetensors"), "x"}), 1,
                  "is not a known family by the names of its tensors");
  const Result result = run({"generate", "--model", file, "--base", path("model"), "x", "--size",
                             "16x16", "--steps", "1", "-o", path("x.png")});
  EXPECT_EQ(result.code, 0) << result.err;
}

TEST_F(CliGenerate, TheModelThatShipsNeedsNoOption) {
  const Result result = run({"generate", "a red apple on a blue background", "--seed", "1",
                             "--json", "-o", path("apple.png")});
  ASSERT_EQ(result.code, 0) << result.err;
  const json report = json::parse(result.out);
  EXPECT_EQ(report["size"], "128x128");
  EXPECT_EQ(report["steps"], 20);
  EXPECT_LT(report["peak_bytes"]["measured"].get<int64_t>(), 400 << 20);
  const PngImage image = read_png(path("apple.png"));
  // The corners are blue; the middle is red.
  const auto pixel = [&](int64_t x, int64_t y) { return &image.rgb[(y * image.width + x) * 3]; };
  EXPECT_GT(pixel(3, 3)[2], pixel(3, 3)[0] + 60);
  EXPECT_GT(pixel(124, 124)[2], pixel(124, 124)[0] + 60);
  EXPECT_GT(pixel(64, 80)[0], pixel(64, 80)[2] + 60);
}

TEST_F(CliGenerate, SheetDrawsPromptsInPrecisions) {
  const Result result = run({"sheet", "a cat", "a dog on a red background", "--precisions",
                             "bf16,nvfp4", "--steps", "4", "-o", path("sheet.png"), "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  const json report = json::parse(result.out);
  ASSERT_EQ(report["precisions"].size(), 2u);
  EXPECT_EQ(report["precisions"][0]["ssim"], 1);
  EXPECT_LT(report["precisions"][1]["ssim"].get<double>(), 0.9999);
  EXPECT_LT(report["precisions"][1]["weight_bytes"].get<int64_t>(),
            report["precisions"][0]["weight_bytes"].get<int64_t>());
  EXPECT_GT(read_png(path("sheet.png")).width, 256);
  expect_one_line(run({"sheet"}), 2, "prompts: none were given");
  expect_one_line(run({"sheet", "--file", path("none.txt")}), 1, "none.txt: no such file");
}

TEST_F(CliGenerate, BenchBlockReportsARatioPerPrecision) {
  const Result result = run({"bench", "block", "--dim", "384", "--tokens", "64", "--runs", "1",
                             "--precision", "bf16,nvfp4", "--json", "--profile"});
  ASSERT_EQ(result.code, 0) << result.err;
  const json first = json::parse(result.out.substr(0, result.out.find('\n')));
  const json second = json::parse(result.out.substr(result.out.find('\n') + 1));
  EXPECT_EQ(first["precision"], "bf16");
  EXPECT_EQ(second["precision"], "nvfp4");
  EXPECT_GT(second["ratio"].get<double>(), 0);
  EXPECT_GT(second["profile"]["linear"].get<double>(), 0.1);
  EXPECT_LT(second["weight_bytes"].get<int64_t>(), first["weight_bytes"].get<int64_t>() / 2);
  expect_one_line(run({"bench", "block", "--dim", "400"}), 2, "--dim: 400 is no multiple of 384");
  expect_one_line(run({"bench", "block", "--device", "cuda:99"}, test::hide_gpus), 1, "--device: ");
}

TEST_F(CliGenerate, CompareWritesAPageAndDataAndSaysWhatFellBack) {
  const std::string page = path("report.html");
  const auto result = run({"compare", "--model", path("model"), "--size", "24x16", "--steps", "2",
                           "--precision", "fp8", "--device", "cuda", "a cat", "-o", page},
                          test::hide_gpus);
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("fp8"));
  EXPECT_THAT(result.out, HasSubstr("floor"));
  const auto data = json::parse(std::ifstream(path("report.json")));
  EXPECT_EQ(data["results"][0]["precision"], "fp8");
  EXPECT_LT(data["results"][0]["velocity_cosine"]["mean"], 0.99999);
  EXPECT_TRUE(std::filesystem::exists(page));
  EXPECT_EQ(data["device"], "cpu");
  EXPECT_THAT(data["fallbacks"][0].get<std::string>(), HasSubstr("cpu instead of cuda"));
  EXPECT_THAT(result.out, HasSubstr("fallback: cpu instead of cuda"));
}

TEST_F(CliGenerate, BadInputIsOneLine) {
  expect_one_line(run({"generate", "--model", path("none"), "x"}), 1,
                  "none: no such model: there is no such folder or file");
  expect_one_line(run({"generate", "--model", path("model/vae"), "x"}), 1,
                  "model/vae: has no model_index.json");
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

#if !defined(HALFTONE_SANITIZED)
// What is told before a run and what the run takes, with the model that ships.
TEST_F(CliGenerate, MemoryIsWhatWasPlanned) {
  const std::vector<std::string> points[] = {
      {"--size", "64x64"},
      {"--size", "64x64", "--threads", "16"},
      {"--size", "128x128", "--batch", "4", "--count", "4"},
      {"--size", "128x64", "--count", "12", "--threads", "1"},
      {"--size", "192x256", "--precision", "nvfp4", "--threads", "3"}};
  for (const auto& point : points) {
    std::vector<std::string> all = {"generate",      "x",     "--steps", "1", "-o",
                                    path("out.png"), "--json"};
    all.insert(all.end(), point.begin(), point.end());
    const Result result = run(all);
    ASSERT_EQ(result.code, 0) << result.err;
    const json bytes = json::parse(result.out)["peak_bytes"];
    const double ratio = bytes["measured"].get<double>() / bytes["planned"].get<double>();
    EXPECT_LE(ratio, 1.05) << point[1] << " " << bytes;
    EXPECT_GE(ratio, 0.7) << point[1] << " " << bytes;
  }
}
#endif

}  // namespace
}  // namespace halftone
