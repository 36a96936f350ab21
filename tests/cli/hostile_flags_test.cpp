// Values and outputs that no command may accept, the standard streams at their worst, and signals.
#include <signal.h>
#include <sys/stat.h>

#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <thread>

#include "halftone/io/png.h"
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

class CliHostile : public Cli {
 protected:
  void SetUp() override {
    fs::remove_all(dir_ / "model");
    const fs::path data = HALFTONE_TEST_DATA;
    const SafetensorsFile fixture(data / "zimage" / "pipeline_guided.safetensors");
    test::write_zimage_folder(dir_ / "model", json::parse(fixture.metadata().at("case")),
                              data / "tokenizer" / "tokenizer.json");
  }
  Result generate(std::initializer_list<std::string> more) {
    std::vector<std::string> all = {"generate", "--model", path("model"), "--size", "24x16",
                                    "--steps",  "2"};
    all.insert(all.end(), more);
    return run(all);
  }
  std::vector<std::string> names(const std::string& folder = "") const {
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator(dir_ / folder)) {
      const std::string name = entry.path().filename().string();
      if (!name.starts_with("std")) found.push_back(name);
    }
    std::sort(found.begin(), found.end());
    return found;
  }
};

TEST_F(CliHostile, ValuesThatAreNoneAreRefused) {
  const std::string out = path("x.png");
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{"generate", "x", "--seed", "-1"}, "--seed"},
      {{"generate", "x", "--seed", "18446744073709551616"}, "--seed"},
      {{"generate", "x", "--seed", "1e3"}, "--seed"},
      {{"generate", "x", "--seed", "0x10"}, "--seed"},
      {{"generate", "x", "--guidance", "nan"}, "--guidance"},
      {{"generate", "x", "--guidance", "inf"}, "--guidance"},
      {{"generate", "x", "--guidance", "1e999"}, "--guidance"},
      {{"generate", "x", "--threshold", "nan"}, "--threshold"},
      {{"generate", "x", "--threshold", "-nan"}, "--threshold"},
      {{"generate", "x", "--steps", "99999999999999999999"}, "--steps"},
      {{"generate", "x", "--count", "-1"}, "--count"},
      {{"generate", "x", "--steps", "0x10"}, "--steps: '0x10' is not a whole number"},
      {{"generate", "x", "--steps", "010"}, "--steps: '010' is not a whole number"},
      {{"generate", "x", "--steps", "+4"}, "--steps: '+4' is not a whole number"},
      {{"generate", "x", "--batch", " 4"}, "--batch: ' 4' is not a whole number"},
      {{"generate", "x", "--size", "24x16x"}, "--size"},
      {{"generate", "x", "--size", "-24x16"}, "--size"},
      {{"generate", "x", "--size", "24x99999999999999999999"}, "--size"},
      {{"generate", "x", "--device", "cuda:"}, "--device"},
      {{"generate", "x", "--device", "cuda:-1"}, "--device"},
      {{"generate", "x", "--max-memory", "nan"}, "--max-memory"},
      {{"generate", "x", "--lora", "x:nan"}, "--lora"},
      {{"quantize", "--device", "x", "--format", "fp8", "-o", "q"}, "--device"},
      {{"quantize", "--format", "fp8", "--budget", "cosine=nan", "-o", "q"}, "--budget"},
      {{"sheet", "x", "--seed", "-1"}, "--seed"},
      {{"compare", "x", "--guidance", "nan"}, "--guidance"}};
  for (const auto& [arguments, flag] : cases) {
    auto all = arguments;
    if (all[0] == "generate") all.insert(all.end(), {"--model", path("model"), "-o", out});
    const Result result = run(all);
    expect_one_line(result, 2, flag);
  }
  EXPECT_FALSE(fs::exists(out));
}

// The largest number that each flag takes, in other digits.
TEST_F(CliHostile, WholeNumbersOfEveryFlagAreDecimal) {
  const std::regex flag(R"((--[a-z-]+) [A-Z]+:INT in \[\d+ - (\d+)\])");
  int flags = 0;
  for (const std::vector<std::string>& command : std::vector<std::vector<std::string>>{
           {"generate"}, {"sheet"}, {"compare"}, {"quantize"}, {"train"}, {"bench", "block"}}) {
    std::vector<std::string> asked = command;
    asked.emplace_back("--help");
    const std::string help = run(asked).out;
    for (std::sregex_iterator at(help.begin(), help.end(), flag), end; at != end; ++at, ++flags) {
      for (const char* digits : {"0x{:x}", "0{:o}"}) {
        asked.back() =
            (*at)[1].str() + "=" + fmt::format(fmt::runtime(digits), std::stoi((*at)[2]));
        expect_one_line(run(asked), 2, "is not a whole number in decimal digits");
      }
    }
  }
  EXPECT_GT(flags, 20);
}

TEST_F(CliHostile, AnEmptyValueIsNotTheDefault) {
  for (const char* flag : {"--model", "--size", "--output", "--precision", "--device", "--lora",
                           "--noise", "--save-latents", "--max-memory", "--base", "--seed"}) {
    expect_one_line(run({"generate", "x", flag, ""}), 2, flag);
    expect_one_line(run({"generate", "x", std::string(flag) + "="}), 2, flag);
  }
  expect_one_line(run({"quantize", "", "--format", "fp8", "-o", path("q")}), 2, "file");
  expect_one_line(run({"inspect", ""}), 2, "empty");
  expect_one_line(generate({"x", "--negative", "y", "--guidance", "0", "-o", path("x.png")}), 2,
                  "--negative");
  // Prompts may well be empty, and take nothing that follows for their value.
  const Result result =
      generate({"--prompt=", "--negative=", "--json", "-o", path("x.png"), "--guidance", "2"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(json::parse(result.out)["negative"], "");
}

TEST_F(CliHostile, OutputsAreCheckedBeforeTheWork) {
  fs::create_directory(dir_ / "folder");
  // So many steps that the work would not end within the test.
  const auto many = [&](std::initializer_list<std::string> more) {
    std::vector<std::string> all = {"generate", "x",       "--steps",     "1000",   "--count",
                                    "100",      "--model", path("model"), "--size", "24x16"};
    all.insert(all.end(), more);
    return run(all);
  };
  expect_one_line(many({"-o", path("missing/x.png")}), 1, "there is no folder");
  expect_one_line(many({"-o", path("x.png"), "--save-latents", path("missing/l")}), 1, "missing");
  expect_one_line(many({"-o", path("x"), "--save-latents", path("x-7")}), 2, "--save-latents");
  expect_one_line(many({"-o", "-"}), 2, "--output");
  expect_one_line(
      run({"generate", "x", "-o", path("folder"), "--model", path("model"), "--steps", "1000"}), 1,
      "is a folder");
  expect_one_line(run({"compare", "-o", path("x.json")}), 2, "same file");
  expect_one_line(run({"compare", "-o", path("missing/x.html")}), 1, "there is no folder");
  expect_one_line(run({"sheet", "-o", path("missing/x.png")}), 1, "there is no folder");
  EXPECT_EQ(names(), (std::vector<std::string>{"folder", "model"}));
}

TEST_F(CliHostile, APictureIsNotCalledWhatItIsNot) {
  for (const char* name : {"x.jpg", "x.JPEG", "x.webp", "x.png.tiff"}) {
    expect_one_line(generate({"x", "-o", path(name)}), 2, "--output: '" + path(name));
    expect_one_line(run({"sheet", "x", "--model", path("model"), "-o", path(name)}), 2,
                    "pictures are PNG");
  }
  EXPECT_EQ(names(), std::vector<std::string>{"model"});
  for (const char* name : {"x.png", "x.PNG", "x", "x-1.5"}) {
    EXPECT_EQ(generate({"x", "-o", path(name)}).code, 0);
    EXPECT_EQ(read_png(dir_ / name).width, 24);
  }
  fs::create_symlink("/dev/null", dir_ / "null.jpg");
  EXPECT_EQ(generate({"x", "-o", path("null.jpg")}).code, 0);
}

TEST_F(CliHostile, APictureGoesIntoAPipeADeviceOrStandardOutput) {
  const Result result = generate({"x", "-o", "-"});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, testing::StartsWith("\x89PNG"));
  EXPECT_THAT(result.err, HasSubstr("memory: "));
  ASSERT_EQ(generate({"x", "-o", path("x.png")}).code, 0);
  EXPECT_EQ(result.out, test::read_file(dir_ / "x.png"));
  ASSERT_EQ(generate({"x", "-o", "/dev/null"}).code, 0);
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
}

TEST_F(CliHostile, BrokenStandardStreamsAreNoCrash) {
  const auto shell = [&](const std::string& line) {
    return std::system(("exec 9>&-; " HALFTONE_PROGRAM " " + line).c_str()) >> 8;
  };
  for (const char* error : {"2>&-", "2>/dev/full"}) {
    EXPECT_EQ(shell(std::string("inspect /no/such/file ") + error), 1);
    EXPECT_EQ(shell(std::string("generate x --seed -1 ") + error), 2);
  }
  const std::string quiet = " 2>" + path("stderr.txt");
  for (const char* command : {"--help", "--version", "info", "generate --help"}) {
    EXPECT_EQ(shell(command + std::string(" >/dev/full") + quiet), 1) << command;
    EXPECT_THAT(test::read_file(dir_ / "stderr.txt"), HasSubstr("standard output: cannot write"));
  }
  // Where there is nothing but what is printed, that must have been possible. A reader may go.
  const std::string file = path("model/transformer/diffusion_pytorch_model.safetensors");
  const std::string printed[] = {"inspect " + file,
                                 "inspect --json " + file,
                                 "info",
                                 "info --json",
                                 "--version",
                                 "--help",
                                 "train --help",
                                 "quantize -f fp8 --json -o " + path("q.safetensors") + " " + file};
  for (const std::string& command : printed) {
    EXPECT_EQ(shell(command + " >&-" + quiet), 1) << command;
    EXPECT_THAT(test::read_file(dir_ / "stderr.txt"), HasSubstr("standard output: cannot write"));
    EXPECT_EQ(shell(command + quiet + " | true"), 0) << command;
  }
  // What is opened next must not become standard output.
  EXPECT_EQ(shell("generate x --device cpu --steps 1 --size 24x16 --model " + path("model") +
                  " -o " + path("y.png") + " >&- 2>&-"),
            0);
  EXPECT_EQ(read_png(dir_ / "y.png").width, 24);
  const std::string small =
      "generate x --device cpu --steps 1 --size 24x16 --model " + path("model");
  EXPECT_EQ(shell(small + " -o - >&-" + quiet), 1);
  EXPECT_THAT(test::read_file(dir_ / "stderr.txt"), HasSubstr("standard output: cannot write"));
  // A picture that goes to a file does not depend on who reads the report.
  EXPECT_EQ(shell(small + " -o " + path("p.png") + " | true"), 0);
  EXPECT_EQ(read_png(dir_ / "p.png").width, 24);
}

TEST_F(CliHostile, ALimitOnTheSizeOfFilesIsAnError) {
  const std::string limited = "ulimit -f 0; " HALFTONE_PROGRAM " ",
                    quiet = " 2>" + path("stderr.txt");
  const std::string commands[] = {
      "generate x --device cpu --steps 1 --size 24x16 --model " + path("model") + " -o " +
          path("f.png"),
      "quantize --device cpu --model " + path("model") + " -f fp8 -o " + path("f"),
      "quantize " + path("model/transformer/diffusion_pytorch_model.safetensors") + " -f fp8 -o " +
          path("f.safetensors")};
  for (const std::string& command : commands) {
    // What it says can only go into a pipe.
    EXPECT_EQ(std::system(("(" + limited + command + " 2>&1 >/dev/null; echo $?) | cat >" +
                           path("stderr.txt"))
                              .c_str()),
              0);
    EXPECT_THAT(test::read_file(dir_ / "stderr.txt"), HasSubstr("File too large"));
    EXPECT_THAT(test::read_file(dir_ / "stderr.txt"), testing::EndsWith("1\n"));
  }
  EXPECT_EQ(names(), std::vector<std::string>{"model"});
}

TEST_F(CliHostile, InputsAreNotOverwritten) {
  const auto refused = [&](const std::vector<std::string>& arguments) {
    expect_one_line(run(arguments), 2, "would replace the input");
  };
  test::write_file(dir_ / "p.txt", "a cat\n");
  const std::string model = path("model"), config = path("model/vae/config.json");
  const std::string before = test::read_file(config);
  refused({"generate", "x", "--model", model, "-o", config});
  refused({"generate", "x", "--model", model, "-o", path("x.png"), "--save-latents", config});
  refused({"generate", "x", "--model", model, "--lora", path("p.txt"), "-o", path("p.txt")});
  refused({"generate", "x", "--model", model, "--noise", path("p.txt"), "-o", path("p.txt")});
  refused({"sheet", "--file", path("p.txt"), "--model", model, "-o", path("p.txt")});
  refused({"compare", "--prompts", path("p.txt"), "--model", model, "-o", path("p.txt")});
  fs::create_symlink(config, dir_ / "link.png");
  refused({"generate", "x", "--model", model, "-o", path("link.png")});
  EXPECT_EQ(test::read_file(config), before);
  EXPECT_EQ(test::read_file(dir_ / "p.txt"), "a cat\n");
}

TEST_F(CliHostile, PromptsThatAreNoneAreNamed) {
  ASSERT_EQ(::mkfifo((dir_ / "pipe").c_str(), 0600), 0);
  for (const char* file : {"/dev/zero", "pipe", "."}) {
    expect_one_line(
        run({"sheet", "--file", *file == '/' ? file : path(file), "--model", path("model")}), 1,
        "is ");
  }
  expect_one_line(generate({"\xFF\xFE", "--json", "-o", path("x.png")}), 2, "prompt: ");
  expect_one_line(generate({"x", "--guidance", "2", "--negative", "\xFF", "--json"}), 2,
                  "--negative: '\\xff' is not UTF-8");
  expect_one_line(generate({std::string(100000, 'a'), "--json", "-o", path("x.png")}), 2,
                  "prompt: 100000 bytes");
}

// oneDNN's products run with the stack inside heap buffers, where no handler may run.
TEST_F(CliHostile, SignalsAtAnyMomentEndWorkCleanly) {
  for (int i = 0; i < 12; ++i) {
    const pid_t child = start({"generate", "x", "--model", path("model"), "--size", "120x96",
                               "--steps", "1000", "-o", path("z.png")},
                              dir_ / "stdout.txt", dir_ / "stderr.txt");
    std::this_thread::sleep_for(std::chrono::milliseconds(60 + 37 * i));
    ::kill(child, i % 2 == 0 ? SIGINT : SIGTERM);
    int status = 0;
    ::waitpid(child, &status, 0);
    const std::string said = test::read_file(dir_ / "stderr.txt");
    // Before the work has begun a signal ends the process as usual.
    const bool early =
        WIFSIGNALED(status) && (WTERMSIG(status) == SIGINT || WTERMSIG(status) == SIGTERM);
    const bool asked = WIFEXITED(status) && WEXITSTATUS(status) == 130;
    EXPECT_TRUE(early || asked) << status << " " << said;
    EXPECT_EQ(said, asked ? "halftone generate: interrupted; nothing was written\n" : "");
    EXPECT_EQ(names(), std::vector<std::string>{"model"});
  }
}

TEST_F(CliHostile, PicturesThatAreFinishedStayWhenTheRestIsInterrupted) {
  const pid_t child = start({"generate", "x", "--model", path("model"), "--size", "24x16",
                             "--steps", "4", "--count", "10000", "-o", path("z.png")},
                            dir_ / "stdout.txt", dir_ / "stderr.txt");
  for (int i = 0; i < 3000 && !fs::exists(dir_ / "z-3.png"); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  ::kill(child, SIGINT);
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 130);
  EXPECT_THAT(test::read_file(dir_ / "stderr.txt"),
              testing::ContainsRegex("interrupted; [0-9]+ of 10000 pictures are written"));
  EXPECT_EQ(read_png(dir_ / "z-1.png").width, 24);
}

// Truncated by another program while it is mapped.
TEST_F(CliHostile, AFileThatShrinksMeanwhileIsNamed) {
  for (int i = 0; i < 6; ++i) {
    SetUp();
    const fs::path weights = dir_ / "model/transformer/diffusion_pytorch_model.safetensors";
    const pid_t child = start({"generate", "x", "--model", path("model"), "--size", "120x96",
                               "--steps", "1000", "-o", path("z.png"), "--json"},
                              dir_ / "stdout.txt", dir_ / "stderr.txt");
    std::this_thread::sleep_for(std::chrono::milliseconds(20 + 60 * i));
    fs::resize_file(weights, i % 2 == 0 ? 0 : fs::file_size(weights) / 3);
    int status = 0;
    ::waitpid(child, &status, 0);
    const std::string said = test::read_file(dir_ / "stderr.txt");
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 1) << status << " " << said;
    EXPECT_THAT(said, HasSubstr("model/transformer"));
    EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
    EXPECT_EQ(names(), std::vector<std::string>{"model"});
  }
}

TEST_F(CliHostile, NoiseThatDoesNotFitIsNamed) {
  const std::string noise = path("noise.safetensors");
  write_safetensors(noise, {{"latents", test::f32_tensor({1, 16, 2, 2}, test::gaussians(1, 64))}});
  expect_one_line(run({"generate", "x", "--model", path("model"), "--size", "24x16", "--json",
                       "--noise", noise, "-o", path("x.png")}),
                  1, "noise.safetensors: is F32");
  std::vector<float> values = test::gaussians(1, 16 * 8 * 12);
  values[77] = NAN;
  write_safetensors(noise, {{"latents", test::f32_tensor({1, 16, 8, 12}, values)}});
  expect_one_line(run({"generate", "x", "--model", path("model"), "--size", "24x16", "--json",
                       "--noise", noise, "-o", path("x.png")}),
                  1, "noise.safetensors: holds NaN");
}

TEST_F(CliHostile, PromptFilesFromWindows) {
  test::write_file(dir_ / "prompts.txt",
                   "\xEF\xBB\xBF"
                   "a cat\r\n\r\na dog\r\n");
  const Result result =
      run({"sheet", "--file", path("prompts.txt"), "--model", path("model"), "--size", "24x16",
           "--steps", "1", "--precisions", "fp32,fp8", "-o", path("s.png"), "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(json::parse(result.out)["prompts"], json({"a cat", "a dog"}));
  test::write_file(dir_ / "prompts.txt", "a \xFF cat\n");
  expect_one_line(run({"sheet", "--file", path("prompts.txt"), "--model", path("model")}), 1,
                  "is not UTF-8");
}

// Smaller than the window of SSIM, which is 11.
TEST_F(CliHostile, VerySmallPicturesCompare) {
  const Result result = run({"sheet", "x", "--model", path("model"), "--size", "4x8", "--steps",
                             "1", "--precisions", "fp32,nvfp4", "-o", path("s.png"), "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  const double ssim = json::parse(result.out)["precisions"][1]["ssim"];
  EXPECT_GT(ssim, -1.0);
  EXPECT_LE(ssim, 1.0);
}

}  // namespace
}  // namespace halftone
