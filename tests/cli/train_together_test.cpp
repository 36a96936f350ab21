// halftone train in several processes, as a user runs it, and as they are killed.
#include <chrono>
#include <csignal>
#include <nlohmann/json.hpp>
#include <sstream>

#include "halftone/io/safetensors_file.h"
#include "halftone/tensor/float_values.h"
#include "tests/cli/train_fixture.h"
#include "tests/support/sanitizers.h"

namespace halftone {
namespace {

using nlohmann::json;
using test::CliTrain;
using test::expect_planned_memory;
using test::memory_arguments;
using test::Result;
using testing::HasSubstr;
namespace fs = std::filesystem;

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

// Of processes that mpirun has started, by rank.
std::vector<pid_t> children_of(pid_t launcher) {
  std::istringstream children(test::read_file("/proc/" + std::to_string(launcher) + "/task/" +
                                              std::to_string(launcher) + "/children"));
  std::vector<pid_t> pids;
  for (pid_t child = 0; children >> child;) pids.push_back(child);
  return pids;
}

void kill_one_child_of(pid_t launcher, int signal) {
  const std::vector<pid_t> children = children_of(launcher);
  ASSERT_FALSE(children.empty());
  ::kill(children.back(), signal);
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

// Whichever dies, and whenever: what was done is saved by one of those that are left, and it says
// so within seconds.
TEST_F(CliTrainTogether, WhatIsLeftOfThemSavesAndSaysWhoHasDied) {
  struct Case {
    int processes, dies, after;  // milliseconds after the third step
    int save_every;
  };
  const auto flags_of = [](int steps, std::initializer_list<std::string> more) {
    std::vector<std::string> flags = {
        "--steps", std::to_string(steps), "--threads", "1", "--stored", "fp32"};
    flags.insert(flags.end(), more);
    return flags;
  };
  const auto run_of = [&](const std::string& output, const std::vector<std::string>& flags) {
    std::vector<std::string> all = arguments(output, {"--batch", "2"});
    all.insert(all.end(), flags.begin(), flags.end());
    return all;
  };
  for (const Case& of : {Case{2, 1, 0, 0}, Case{2, 0, 7, 0}, Case{2, 0, 0, 1}, Case{3, 0, 41, 0}}) {
    SCOPED_TRACE(fmt::format("{} of {}", of.dies + 1, of.processes));
    const pid_t launcher = begin(
        of.processes, run_of("out.safetensors",
                             flags_of(100000, {"--events", path("events.jsonl"), "--save-every",
                                               std::to_string(of.save_every)})));
    const auto running = [&] {
      return fs::exists(path("events.jsonl")) &&
             test::read_file(path("events.jsonl")).find("\"step\":3") != std::string::npos;
    };
    for (int i = 0; i < 2000 && !running(); ++i) ::usleep(20000);
    ::usleep(static_cast<useconds_t>(of.after) * 1000);
    const std::vector<pid_t> children = children_of(launcher);
    ASSERT_EQ(children.size(), static_cast<size_t>(of.processes));
    const auto start = std::chrono::steady_clock::now();
    ::kill(children[static_cast<size_t>(of.dies)], SIGKILL);
    const Result ended = finished(launcher);
    EXPECT_NE(ended.code, 0);
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
    EXPECT_THAT(ended.err,
                HasSubstr(fmt::format("process {} of {} has died", of.dies + 1, of.processes)));
    EXPECT_THAT(ended.err, HasSubstr("--resume goes on from "));
    for (int i = 0; i < 100 && !fs::exists(path("out.checkpoints")); ++i) ::usleep(50000);
    ASSERT_TRUE(fs::exists(path("out.checkpoints"))) << ended.err;
    EXPECT_FALSE(fs::exists(path("out.checkpoints.old"))) << "what this run has saved itself";
    const std::vector<int> saved = steps_of(path("out.checkpoints"));
    ASSERT_FALSE(saved.empty()) << ended.err;
    const int last = std::ranges::max(saved);
    EXPECT_GE(last, 3);
    // To the bytes of a run in which nobody has died.
    const Result resumed =
        together(of.processes, run_of("out.safetensors", flags_of(last + 1, {"--resume"})));
    ASSERT_EQ(resumed.code, 0) << resumed.err;
    EXPECT_THAT(resumed.out, HasSubstr(fmt::format("resumed from step {}", last)));
    const Result whole =
        together(of.processes, run_of("whole.safetensors", flags_of(last + 1, {})));
    ASSERT_EQ(whole.code, 0) << whole.err;
    EXPECT_EQ(values_of(path("out.safetensors")), values_of(path("whole.safetensors")));
    fs::remove_all(path("out.checkpoints"));
    fs::remove(path("events.jsonl"));
  }
}

// Beside the backward pass and after it: the same bytes, and what sums took is told.
TEST_F(CliTrainTogether, GradientsThatGoEarlyAreTheSame) {
  std::vector<std::string> bytes;
  for (const char* flag : {"--no-overlap", "--deterministic"}) {  // the other one changes nothing
    const auto two = arguments(
        "two.safetensors", {"--steps", "4", "--threads", "1", "--batch", "1", "--stored", "fp32",
                            "--accumulate", "2", "--events", path("events.jsonl"), flag});
    const Result result = together(2, two);
    ASSERT_EQ(result.code, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr("gradients of 2 processes summed in "));
    const auto numbers = values_of(path("two.safetensors"));
    bytes.emplace_back(reinterpret_cast<const char*>(numbers.data()),
                       numbers.size() * sizeof(float));
    for (const json& event : events_of(test::read_file(path("events.jsonl")))) {
      if (event["event"] == "model_loaded") {
        EXPECT_EQ(event["processes"], 2);
        EXPECT_EQ(event["sums"]["used"], "host");
      }
      if (event["event"] != "progress" && event["event"] != "complete") continue;
      EXPECT_GT(event["sum_s"].get<double>(), 0);
      EXPECT_GE(event["wait_s"].get<double>(), 0);
    }
    fs::remove(path("two.safetensors"));
  }
  EXPECT_EQ(bytes[0], bytes[1]);
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

}  // namespace
}  // namespace halftone
