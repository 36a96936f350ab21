// halftone train as a user runs it, and as it is killed.
#include <csignal>
#include <nlohmann/json.hpp>
#include <sstream>

#include "halftone/io/png.h"
#include "halftone/io/safetensors_file.h"
#include "tests/cli/train_fixture.h"
#include "tests/support/sanitizers.h"

namespace halftone {
namespace {

using nlohmann::json;
using test::CliTrain;
using test::expect_one_line;
using test::expect_planned_memory;
using test::memory_arguments;
using test::Result;
using testing::HasSubstr;
namespace fs = std::filesystem;

TEST_F(CliTrain, TellsWhatHappens) {
  test::write_file(path("data/alone.txt"), "x");
  const Result result =
      run(arguments("out.safetensors",
                    {"--steps", "4", "--save-every", "2", "--events", path("events.jsonl"),
                     "--sample-every", "4", "--sample-steps", "2", "--sample-prompt", "a cat"}));
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("4 steps on 3 pictures in "));
  EXPECT_THAT(result.out, HasSubstr("alone.txt: is a caption without a picture"));
  EXPECT_THAT(result.out, HasSubstr("try it: halftone generate --model " + path("model") +
                                    " --lora " + path("out.safetensors")));
  std::map<std::string, int> seen;
  for (const json& event : events_of(test::read_file(path("events.jsonl")))) {
    ++seen[event["event"]];
    EXPECT_GT(event["time"].get<double>(), 1e9);
    if (event["event"] == "progress") {
      EXPECT_GT(event["grad_norm"].get<double>(), 0);
    }
    if (event["event"] == "model_loaded") {
      EXPECT_EQ(event["precision"]["used"], "fp32");
    }
  }
  EXPECT_EQ(seen["progress"], 4);
  EXPECT_EQ(seen["checkpoint"], 2);
  EXPECT_EQ(seen["sample"], 2);
  EXPECT_EQ(seen["warning"], 1);
  EXPECT_EQ(seen["complete"], 1);
  const std::string page = test::read_file(path("out.html"));
  EXPECT_THAT(page, HasSubstr("What it drew"));
  EXPECT_THAT(page, HasSubstr("data:image/png;base64,"));
  const Result picture =
      run({"generate", "--model", path("model"), "--lora", path("out.safetensors"), "a cat",
           "--size", "24x16", "--steps", "2", "-o", path("p.png")});
  EXPECT_EQ(picture.code, 0) << picture.err;
  EXPECT_THAT(picture.out, testing::Not(HasSubstr("note: ")));
  // Beside the same base in 8 bits, and beside another one.
  const Result other =
      run({"generate", "--model", path("model"), "--lora", path("out.safetensors"), "a cat",
           "--size", "24x16", "--steps", "2", "--precision", "fp8", "-o", path("p.png")});
  EXPECT_THAT(other.out,
              HasSubstr("out.safetensors was trained beside a base in fp32, which is in fp8"));
  const SafetensorsFile file(path("out.safetensors"));
  Metadata metadata = file.metadata();
  metadata["halftone.base"] = "0123";
  std::vector<std::pair<std::string, Tensor>> tensors;
  for (const TensorEntry& entry : file.tensors())
    tensors.emplace_back(entry.name, file.tensor(entry));
  write_safetensors(path("foreign.safetensors"), tensors, metadata);
  const Result foreign =
      run({"generate", "--model", path("model"), "--lora", path("foreign.safetensors"), "a cat",
           "--size", "24x16", "--steps", "2", "-o", path("p.png")});
  EXPECT_THAT(foreign.out, HasSubstr("foreign.safetensors was trained beside another base"));
}

TEST_F(CliTrain, FlagsFromAFile) {
  HT_NEEDS_TOML();
  test::write_file(
      path("run.toml"),
      "steps = 2\nteacher = false\nrank = 3\ntargets = [\"attention\"]\nresume = true\n"
      "[train]\nlr = 0.5\nsave_every = 1\n");
  const Result result =
      run(arguments("out.safetensors", {"--config", path("run.toml"), "--events", "-"}));
  ASSERT_EQ(result.code, 0) << result.err;
  const auto events = events_of(result.out);
  EXPECT_EQ(events.back()["step"], 2);
  // The command line's rank and rate.
  EXPECT_EQ(SafetensorsFile(path("out.safetensors")).metadata().at("halftone.rank"), "2");
  for (const json& event : events) {
    if (event["event"] == "progress") {
      EXPECT_FLOAT_EQ(event["lr"].get<float>(), 1e-2f);
    }
  }
  const std::pair<const char*, const char*> wrong[] = {
      {"steps = \"many\"", "run.toml: line 1: "},
      {"\nno-such = 1", "run.toml: line 2: 'no-such' is no flag of 'train'"},
      {"resume = 3", "line 1: 'resume' is true or false"},
      {"steps = true", "line 1: 'steps' takes a value"},
      {"steps = [", "run.toml: line 1: "},
      {"clip = [1]", "run.toml: line 1: 'clip' takes one value"},
      {"\nprior = 3", "run.toml: line 2: 'prior' takes a text"},
      {"targets = [3]", "run.toml: line 1: 'targets' takes a text"},
      {"sample-size = 32", "run.toml: line 1: 'sample-size' takes a text"},
  };
  for (const auto& [text, why] : wrong) {
    test::write_file(path("run.toml"), text);
    expect_one_line(run(arguments("out.safetensors", {"--config", path("run.toml")})), 2, why);
  }
}

TEST_F(CliTrain, WhatIsWrongIsOneLine) {
  expect_one_line(run({"train", "-o", path("x.safetensors")}), 2, "--data: is needed");
  expect_one_line(run({"train", "--data", path("data")}), 2, "--output: is needed");
  expect_one_line(run(arguments("x.safetensors", {"--targets", "tpyo*"})), 2,
                  "--targets: 'tpyo*' match no linear");
  expect_one_line(run(arguments("x.safetensors", {"--resolution", "33"})), 2, "--resolution");
  expect_one_line(run(arguments("x.safetensors", {"--min-snr", "5"})), 2, "--min-snr: is for");
  expect_one_line(run(arguments("x.safetensors", {"--check-gradients"})), 2, "--check-gradients: ");
  for (const char* flag : {"--sample-prompt", "--sample-size", "--sample-steps", "--sample-seed"}) {
    expect_one_line(run(arguments("x.safetensors", {flag, "9x9"})), 2, flag);
  }
  expect_one_line(run(arguments("x.safetensors", {"--sample-every", "1", "--sample-size", "9x9"})),
                  2, "--sample-size: 9x9 is not allowed");
  expect_one_line(run(arguments("x.safetensors", {"--backward", "fp8", "--strict"})), 3,
                  "--strict: backward: fp8");
  expect_one_line(run(arguments("x.safetensors", {"--prior-weight", "2"})), 2, "--prior-weight");
  expect_one_line(run(arguments("x.safetensors", {"--events", path("data/0.png")})), 2, "--events");
  expect_one_line(run(arguments("x.safetensors", {"--max-memory", "1K"})), 1, "--max-memory: ");
  EXPECT_FALSE(fs::exists(path("x.safetensors")));
  EXPECT_EQ(read_png(path("data/0.png")).width, 32);
}

// Whoever reads the events has gone: that is told, once, and the run goes on.
TEST_F(CliTrain, EventsThatNobodyReadsAreLostAloud) {
  const auto without_reader = [] {
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    ::dup2(ends[1], 1);
    ::close(ends[0]);
  };
  const Result result =
      run(arguments("out.safetensors", {"--steps", "3", "--events", "-"}), without_reader);
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_TRUE(fs::exists(path("out.safetensors")));
  const size_t told = result.err.find("--events: Broken pipe; some are lost");
  ASSERT_NE(told, std::string::npos) << result.err;
  EXPECT_EQ(result.err.find("some are lost", told + 40), std::string::npos) << result.err;
}

// Killed wherever it happens to be, again and again: in the end the same bytes as if nothing had.
TEST_F(CliTrain, KilledRunsGoOnToTheSameBytes) {
  const std::initializer_list<std::string> how = {"--steps", "24",  "--save-every", "1",
                                                  "--ema",   "0.9", "--resume"};
  ASSERT_EQ(run(arguments("whole.safetensors", how)).code, 0);
  int killed = 0, interrupted = 0;
  for (int i = 0; i < 20 && !fs::exists(path("parts.safetensors")); ++i) {
    const pid_t child =
        start(arguments("parts.safetensors", how), dir_ / "out.txt", dir_ / "err.txt", [] {});
    ::usleep(static_cast<useconds_t>(20000 + 13000 * i));
    ::kill(child, i % 3 == 2 ? SIGINT : SIGKILL);
    int status = 0;
    ::waitpid(child, &status, 0);
    killed += WIFSIGNALED(status) ? 1 : 0;
    interrupted += WIFEXITED(status) && WEXITSTATUS(status) == 130 ? 1 : 0;
  }
  EXPECT_GT(killed + interrupted, 3);
  const Result last = run(arguments("parts.safetensors", how));
  ASSERT_EQ(last.code, 0) << last.err;
  EXPECT_EQ(test::read_file(path("parts.safetensors")), test::read_file(path("whole.safetensors")));
  for (const auto& left : fs::directory_iterator(path("parts.checkpoints"))) {
    EXPECT_THAT(left.path().filename().string(), testing::StartsWith("step-"));
  }
}

// The weights themselves, plainly and for a format, with pictures on the way.
TEST_F(CliTrain, TheWholeModelIsTrainedWrittenAndRun) {
  const auto whole = [&](const std::string& output, std::initializer_list<std::string> more) {
    std::vector<std::string> all = {"train",       "--model",      path("model"), "--data",
                                    path("data"),  "-o",           path(output),  "--cache",
                                    path("cache"), "--resolution", "32",          "--steps",
                                    "3",           "--lr",         "1e-3"};
    all.insert(all.end(), more);
    return run(all);
  };
  const auto picture = [&](const std::string& model, const std::string& name) {
    std::vector<std::string> all = {"generate", "a cat",    "--model",     path(model),
                                    "--size",   "32x32",    "--steps",     "2",
                                    "-o",       path(name), "--precision", "fp32"};
    if (model != "model") all.insert(all.end(), {"--base", path("model")});
    const Result made = run(all);
    EXPECT_EQ(made.code, 0) << made.err;
    return test::read_file(path(name));
  };
  const Result full = whole("full.safetensors",
                            {"--mode", "full", "--sample-every", "3", "--sample-prompt", "a cat",
                             "--sample-steps", "2", "--ema", "0.5", "--save-every", "2"});
  ASSERT_EQ(full.code, 0) << full.err;
  EXPECT_THAT(full.out, HasSubstr("generate --model"));
  EXPECT_TRUE(fs::exists(path("full.checkpoints/step-000002/model.safetensors")));
  EXPECT_NE(test::read_file(path("full.samples/step-000000-1.png")),
            test::read_file(path("full.samples/step-000003-1.png")));
  EXPECT_NE(picture("full.safetensors", "after.png"), picture("model", "before.png"));
  const Result qat = whole("qat.safetensors", {"--mode", "qat", "--teacher", "--precision", "mxfp8",
                                               "--sample-every", "3", "--backward", "fp8"});
  ASSERT_EQ(qat.code, 0) << qat.err;
  EXPECT_THAT(qat.out, HasSubstr("computed in mxfp8"));
  picture("qat.safetensors", "qat.png");

  expect_one_line(whole("x.safetensors", {"--mode", "full", "--rank", "4"}), 2, "--rank");
  expect_one_line(whole("x.safetensors", {"--mode", "full", "--teacher"}), 2, "--teacher");
  expect_one_line(whole("x.safetensors", {"--mode", "qat", "--precision", "fp32"}), 2, "precision");
  const Result folder = run({"quantize", "--model", path("model"), "-f", "fp8", "-o", path("fp8")});
  ASSERT_EQ(folder.code, 0) << folder.err;
  expect_one_line(run({"train", "--model", path("fp8"), "--data", path("data"), "--mode", "full",
                       "-o", path("x.safetensors")}),
                  1, "high precision");
}

// Within 5%: nothing that is trained is copied to be written, summed or begun, and what is kept is
// counted.
TEST_F(CliTrain, MemoryIsWhatWasPlanned) {
  HT_SKIP_WHERE_SANITIZED();
  const std::initializer_list<std::string> points[] = {
      {"--rank", "256", "--batch", "2", "--save-every", "1"},
      {"--mode", "full", "--save-every", "1", "--ema", "0.9"},
      {"--mode", "full", "--resume", "--save-every", "1", "--ema", "0.9"},
      {"--mode", "full", "--weights", "bf16", "--optimizer", "adamw8bit", "--batch", "2"},
      {"--mode", "qat", "--precision", "mxfp8", "--check-gradients", "--save-every", "1"}};
  int steps = 2;
  for (const auto& point : points) {
    SCOPED_TRACE(fmt::format("{}", fmt::join(point, " ")));
    const Result result =
        run(memory_arguments(path("data"), path("out.safetensors"), ++steps, point));
    ASSERT_EQ(result.code, 0) << result.err;
    expect_planned_memory(events_of(result.out));
  }
}

}  // namespace
}  // namespace halftone
