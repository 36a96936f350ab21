// halftone train as a user runs it, and as it is killed.
#include <chrono>
#include <csignal>
#include <nlohmann/json.hpp>
#include <sstream>

#include "halftone/io/png.h"
#include "halftone/io/safetensors_file.h"
#include "halftone/tensor/float_values.h"
#include "tests/cli/process.h"
#include "tests/support/sanitizers.h"
#include "tests/support/tiny_zimage.h"

namespace halftone {
namespace {

using nlohmann::json;
using test::Cli;
using test::expect_one_line;
using test::Result;
using testing::HasSubstr;
namespace fs = std::filesystem;

class CliTrain : public Cli {
 protected:
  void SetUp() override {
    const fs::path data = HALFTONE_TEST_DATA;
    const SafetensorsFile fixture(data / "zimage" / "pipeline_guided.safetensors");
    test::write_zimage_folder(dir_ / "model", json::parse(fixture.metadata().at("case")),
                              data / "tokenizer" / "tokenizer.json");
    fs::create_directories(dir_ / "data");
    for (int i = 0; i < 3; ++i) {
      PngImage image{32, 32, std::vector<uint8_t>(32 * 32 * 3, static_cast<uint8_t>(60 * i)), {}};
      write_png(dir_ / ("data/" + std::to_string(i) + ".png"), image);
      test::write_file(dir_ / ("data/" + std::to_string(i) + ".txt"), "a cat");
    }
  }
  std::vector<std::string> arguments(const std::string& output,
                                     std::initializer_list<std::string> more) const {
    std::vector<std::string> all = {"train",       "--model",      path("model"), "--data",
                                    path("data"),  "-o",           path(output),  "--cache",
                                    path("cache"), "--resolution", "32",          "--rank",
                                    "2",           "--lr",         "1e-2"};
    all.insert(all.end(), more);
    return all;
  }
  static std::vector<json> events_of(const std::string& text) {
    std::vector<json> events;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) events.push_back(json::parse(line));
    return events;
  }
};

TEST_F(CliTrain, TellsWhatHappens) {
  test::write_file(path("data/alone.txt"), "x");
  const Result result =
      run(arguments("out.safetensors",
                    {"--steps", "4", "--save-every", "2", "--events", path("events.jsonl"),
                     "--sample-every", "4", "--sample-steps", "2", "--sample-prompt", "a cat"}));
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("4 steps on 3 pictures in "));
  EXPECT_THAT(result.out, HasSubstr("alone.txt: is a caption without a picture"));
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

// Of the model that ships, whose size leaves little to what is not planned.
std::vector<std::string> memory_arguments(const std::string& data, const std::string& output,
                                          int steps, std::initializer_list<std::string> more) {
  std::vector<std::string> all = {"train", "--data",    data, "-o",       output, "--resolution",
                                  "128",   "--threads", "2",  "--events", "-"};
  all.insert(all.end(), {"--steps", std::to_string(steps)});
  all.insert(all.end(), more);
  return all;
}
void expect_planned_memory(const std::vector<json>& events) {
  int64_t planned = 0, measured = 0;
  for (const json& event : events) {
    if (event["event"] == "model_loaded") planned = event["planned_bytes"];
    if (event["event"] == "progress") measured = std::max<int64_t>(measured, event["peak_bytes"]);
  }
  EXPECT_GT(planned, 100 << 20);
  EXPECT_NEAR(static_cast<double>(measured) / static_cast<double>(planned), 1, 0.05)
      << measured << " of " << planned;
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

#if defined(HALFTONE_MPIRUN)
// Processes on this machine alone, whoever starts them.
class CliTrainTogether : public CliTrain {
 protected:
  Result together(int processes, std::vector<std::string> arguments) {
    return finished(begin(processes, std::move(arguments)));
  }
  pid_t begin(int processes, std::vector<std::string> arguments) {
    arguments = test::on_cpu(std::move(arguments));
    std::vector<std::string> all = {"-n", std::to_string(processes), HALFTONE_PROGRAM};
    all.insert(all.end(), arguments.begin(), arguments.end());
    return start_program(HALFTONE_MPIRUN, all, dir_ / "stdout.txt", dir_ / "stderr.txt", [] {
      for (const char* name : {"OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM",
                               "OMPI_MCA_rmaps_base_oversubscribe"}) {
        ::setenv(name, "1", 1);
      }
      ::setenv("OMPI_MCA_plm", "isolated", 1);
      ::setenv("OMPI_MCA_btl", "self,vader", 1);
    });
  }
};

void kill_one_child_of(pid_t parent, int signal) {
  std::istringstream children(test::read_file("/proc/" + std::to_string(parent) + "/task/" +
                                              std::to_string(parent) + "/children"));
  pid_t child = 0;
  while (children >> child) {
  }
  ASSERT_GT(child, 0);
  ::kill(child, signal);
}

std::vector<int> steps_of(const fs::path& checkpoints) {
  std::vector<int> steps;
  for (const auto& entry : fs::directory_iterator(checkpoints)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("step-") && name.find(".halftone-") == std::string::npos) {
      steps.push_back(std::stoi(name.substr(5)));
    }
  }
  return steps;
}

std::vector<float> values_of(const std::string& file) {
  std::vector<float> all;
  const SafetensorsFile read(file);
  for (const TensorEntry& entry : read.tensors()) {
    const auto values = float_values(read.tensor(entry));
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

// Two processes with a batch of one are one process with a batch of two.
TEST_F(CliTrainTogether, AreOneWithALargerBatch) {
  const std::vector<std::string> more = {"--steps", "6", "--stored", "fp32", "--threads", "1"};
  auto alone = arguments("alone.safetensors", {"--batch", "2", "--events", path("alone.jsonl")});
  alone.insert(alone.end(), more.begin(), more.end());
  ASSERT_EQ(run(alone).code, 0);
  auto two = arguments("two.safetensors", {"--batch", "1", "--events", path("events.jsonl"),
                                           "--sample-every", "6", "--sample-steps", "2"});
  two.insert(two.end(), more.begin(), more.end());
  const Result result = together(2, two);
  ASSERT_EQ(result.code, 0) << result.err;
  const auto a = values_of(path("alone.safetensors")), b = values_of(path("two.safetensors"));
  ASSERT_EQ(a.size(), b.size());
  double difference = 0, size = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    size += a[i] * a[i];
  }
  EXPECT_LE(std::sqrt(difference / size), 1e-5);  // AdamW divides by what may be small
  EXPECT_THAT(result.out, HasSubstr("6 steps on 3 pictures"));
  EXPECT_EQ(result.out.find("6 steps"), result.out.rfind("6 steps")) << "one of them tells";
  const auto losses = [](const std::vector<json>& events) {
    std::vector<double> all;
    for (const json& event : events) {
      if (event["event"] == "progress") all.push_back(event["loss"]);
    }
    return all;
  };
  const auto one = losses(events_of(test::read_file(path("alone.jsonl"))));
  const auto both = losses(events_of(test::read_file(path("events.jsonl"))));
  ASSERT_EQ(both.size(), 6u);
  for (size_t i = 0; i < both.size(); ++i) EXPECT_NEAR(both[i], one[i], 1e-6 * one[i]) << i;
}

TEST_F(CliTrainTogether, OneThatDiesEndsTheOthersAndTheRunGoesOn) {
  const std::vector<std::string> long_run = {"--steps",   "100000", "--batch",      "1",
                                             "--threads", "1",      "--save-every", "5"};
  auto two = arguments("out.safetensors", {});
  two.insert(two.end(), long_run.begin(), long_run.end());
  const pid_t launcher = begin(2, two);
  // The first of them do not stay for long.
  const auto some = [&] {
    return fs::exists(path("out.checkpoints")) && !steps_of(path("out.checkpoints")).empty();
  };
  for (int i = 0; i < 600 && !some(); ++i) ::usleep(100000);
  ASSERT_TRUE(some());
  kill_one_child_of(launcher, SIGKILL);
  const Result ended = finished(launcher);
  EXPECT_NE(ended.code, 0);
  std::vector<std::string> again = arguments("out.safetensors", {"--batch", "2", "--resume"});
  const auto last = std::ranges::max(steps_of(path("out.checkpoints")));
  again.insert(again.end(), {"--steps", std::to_string(last + 1), "--threads", "1"});
  const Result resumed = run(again);  // by one process, with the same batch
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_THAT(resumed.out, HasSubstr("resumed from step " + std::to_string(last)));
}

TEST_F(CliTrainTogether, MemoryIsWhatWasPlanned) {
  HT_SKIP_WHERE_SANITIZED();
  const Result result =
      together(2, memory_arguments(path("data"), path("out.safetensors"), 3, {"--mode", "full"}));
  ASSERT_EQ(result.code, 0) << result.err;
  expect_planned_memory(events_of(result.out));
}

// Whoever is told first, mpirun or one of the processes: all stop in the middle of a step, and what
// they have done is saved.
TEST_F(CliTrainTogether, OneThatIsInterruptedStopsAllOfThem) {
  for (const bool one_alone : {false, true}) {
    SCOPED_TRACE(one_alone);
    auto two = arguments("out.safetensors", {"--batch", "4", "--steps", "100000", "--threads", "1",
                                             "--events", path("events.jsonl")});
    const pid_t launcher = begin(2, two);
    const auto running = [&] {
      return test::read_file(path("events.jsonl")).find("\"step\":3") != std::string::npos;
    };
    for (int i = 0; i < 600 && !(fs::exists(path("events.jsonl")) && running()); ++i) {
      ::usleep(50000);
    }
    const auto start = std::chrono::steady_clock::now();
    if (one_alone) {
      kill_one_child_of(launcher, SIGINT);
    } else {
      ::kill(launcher, SIGINT);
    }
    const Result ended = finished(launcher);
    EXPECT_NE(ended.code, 0);
    EXPECT_LT(std::chrono::steady_clock::now() - start,
              std::chrono::seconds(15));  // in any weather
    for (int i = 0; i < 100 && !fs::exists(path("out.checkpoints")); ++i) ::usleep(50000);
    ASSERT_TRUE(fs::exists(path("out.checkpoints"))) << ended.err;
    const std::vector<int> saved = steps_of(path("out.checkpoints"));
    ASSERT_FALSE(saved.empty()) << ended.err;
    EXPECT_GE(saved[0], 3);
    auto again = arguments("out.safetensors", {"--batch", "8", "--resume", "--threads", "1"});
    again.insert(again.end(), {"--steps", std::to_string(saved[0] + 1)});
    const Result resumed = run(again);
    EXPECT_EQ(resumed.code, 0) << resumed.err;
    fs::remove_all(path("out.checkpoints"));
    fs::remove(path("events.jsonl"));
  }
}
#endif

}  // namespace
}  // namespace halftone
