// A tiny model and a few pictures, on which `halftone train` is run as a user runs it.
#pragma once

#include <nlohmann/json.hpp>
#include <sstream>

#include "halftone/io/png.h"
#include "halftone/io/safetensors_file.h"
#include "tests/cli/process.h"
#include "tests/support/tiny_zimage.h"

namespace halftone::test {

class CliTrain : public Cli {
 protected:
  void SetUp() override {
    const std::filesystem::path data = HALFTONE_TEST_DATA;
    const SafetensorsFile fixture(data / "zimage" / "pipeline_guided.safetensors");
    write_zimage_folder(dir_ / "model", nlohmann::json::parse(fixture.metadata().at("case")),
                        data / "tokenizer" / "tokenizer.json");
    std::filesystem::create_directories(dir_ / "data");
    for (int i = 0; i < 3; ++i) {
      PngImage image{32, 32, std::vector<uint8_t>(32 * 32 * 3, static_cast<uint8_t>(60 * i)), {}};
      write_png(dir_ / ("data/" + std::to_string(i) + ".png"), image);
      write_file(dir_ / ("data/" + std::to_string(i) + ".txt"), "a cat");
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
  static std::vector<nlohmann::json> events_of(const std::string& text) {
    std::vector<nlohmann::json> events;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);)
      events.push_back(nlohmann::json::parse(line));
    return events;
  }
};

// Of the model that ships, whose size leaves little to what is not planned.
inline std::vector<std::string> memory_arguments(const std::string& data, const std::string& output,
                                                 int steps,
                                                 std::initializer_list<std::string> more) {
  std::vector<std::string> all = {"train", "--data",    data, "-o",       output, "--resolution",
                                  "128",   "--threads", "2",  "--events", "-"};
  all.insert(all.end(), {"--steps", std::to_string(steps)});
  all.insert(all.end(), more);
  return all;
}
inline void expect_planned_memory(const std::vector<nlohmann::json>& events) {
  int64_t planned = 0, measured = 0;
  for (const nlohmann::json& event : events) {
    if (event["event"] == "model_loaded") planned = event["planned_bytes"];
    if (event["event"] == "progress") measured = std::max<int64_t>(measured, event["peak_bytes"]);
  }
  EXPECT_GT(planned, 100 << 20);
  EXPECT_NEAR(static_cast<double>(measured) / static_cast<double>(planned), 1, 0.05)
      << measured << " of " << planned;
}

}  // namespace halftone::test
