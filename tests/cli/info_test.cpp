// halftone info on machines that are made up.
#include "halftone/cli/info.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace halftone::cli {
namespace {

using testing::HasSubstr;
using testing::Not;

Machine machine(bool cuda, std::vector<DeviceInfo> gpus) {
  Machine made{{"Made Up CPU", 8, {"avx2"}, "fast", int64_t{16} << 30}, {}, cuda};
  made.gpus.driver = "13.0";
  if (gpus.empty()) made.gpus.note = "the NVIDIA driver lists no GPU";
  made.gpus.gpus = std::move(gpus);
  return made;
}

DeviceInfo gpu(int index, const char* name, int major, int minor) {
  return {{DeviceKind::kCuda, index}, name, major, minor, int64_t{80} << 30};
}

TEST(Info, SaysWhichDeviceModelsRunOn) {
  const DeviceInfo h100 = gpu(0, "H100", 9, 0), b200 = gpu(1, "B200", 10, 0),
                   v100 = gpu(0, "V100", 7, 0);
  struct Case {
    Machine machine;
    const char *device, *why;
  };
  const Case cases[] = {
      {machine(true, {h100, b200}), "cuda:0", "H100"},
      {machine(true, {b200}), "cuda:1", "B200"},  // as CUDA numbers it
      {machine(false, {h100}), "cpu", "this build has no CUDA backend"},
      {machine(true, {v100}), "cpu", "V100 needs compute capability 7.5 or later"},
      {machine(true, {}), "cpu", "there is no GPU"},
      {machine(false, {}), "cpu", "there is no GPU"}};
  for (const auto& [made, device, why] : cases) {
    const std::string text = to_text(made);
    EXPECT_THAT(text, HasSubstr(fmt::format("Without --device models run on {}: {}", device, why)));
    const auto json = to_json(made);
    EXPECT_EQ(json["usual_device"]["device"], device);
    EXPECT_THAT(json["usual_device"]["why"].get<std::string>(), HasSubstr(why));
    EXPECT_EQ(json["backends"].size(), made.cuda ? 2u : 1u);
    EXPECT_EQ(text.find("what its hardware can do") != std::string::npos,
              !made.cuda && !made.gpus.gpus.empty());
  }
}

TEST(Info, ListsEveryDeviceWithEveryFormat) {
  const Machine made = machine(true, {gpu(0, "A100", 8, 0), gpu(1, "B200", 10, 3)});
  const std::string text = to_text(made);
  EXPECT_THAT(text, HasSubstr("cpu  Made Up CPU, 8 threads, 16.0 GiB"));
  EXPECT_THAT(text, HasSubstr("cuda:0  A100, sm_80, 80.0 GiB, driver CUDA 13.0"));
  EXPECT_THAT(text, HasSubstr("cuda:1  B200, sm_103"));
  EXPECT_THAT(text, Not(HasSubstr("gpu  none")));
  const auto json = to_json(made);
  for (const Format& format : all_formats()) {
    const std::string name(format.name);
    EXPECT_TRUE(json["cpu"]["formats"].contains(name)) << name;
    EXPECT_TRUE(json["gpus"][1]["formats"].contains(name)) << name;
  }
  EXPECT_EQ(json["gpus"][0]["formats"]["nvfp4"]["support"], "emulated");
  EXPECT_EQ(json["gpus"][1]["formats"]["nvfp4"]["support"], "native");
  EXPECT_THAT(to_text(machine(true, {})), HasSubstr("gpu  none: the NVIDIA driver lists no GPU"));
}

}  // namespace
}  // namespace halftone::cli
