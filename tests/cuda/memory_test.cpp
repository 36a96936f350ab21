// Device memory is what was planned, by the context's own count and by the driver's.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "halftone/engine/generate.h"
#include "tests/support/backend.h"
#include "tests/support/load_pipeline.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_zimage.h"

namespace halftone {
namespace {

struct Point {
  const char* precision;
  int64_t width, height, batch;
  bool compile = true;
};

class DeviceMemory : public testing::TestWithParam<Point> {};
INSTANTIATE_TEST_SUITE_P(, DeviceMemory,
                         testing::Values(Point{"fp32", 512, 512, 1}, Point{"bf16", 512, 768, 1},
                                         Point{"fp8", 512, 512, 3}, Point{"nvfp4", 768, 512, 1},
                                         Point{"mxfp8", 512, 512, 2, false}),
                         [](const auto& tested) { return std::string(tested.param.precision); });

TEST_P(DeviceMemory, IsWhatWasPlanned) {
  const Point& point = GetParam();
  const test::TempDir dir;
  const std::filesystem::path data = HALFTONE_TEST_DATA;
  test::write_zimage_folder(dir / "model", test::one_layer_zimage(),
                            data / "tokenizer" / "tokenizer.json");
  LoadOptions options;
  const Format format = *find_format(point.precision);
  options.activations = format == formats::fp32 ? DType::kF32 : DType::kBF16;
  if (format.quantized()) options.format = format;
  options.compile = point.compile;
  options.kernels = &test::tested_kernels();
  options.stream = test::tested_stream();
  GenerateRequest request;
  request.prompt = "a";
  request.width = point.width;
  request.height = point.height;
  request.count = request.batch = point.batch;
  request.steps = 3;
  const auto silent = [](const Progress&) {};
  // Kernels are compiled and loaded, and algorithms chosen, once per process.
  generate(*test::load_pipeline(dir / "model", options), request, silent);

  DeviceContext& device = *options.stream.device;
  device.synchronize();
  device.forget_most_held();
  const DeviceMemoryInfo before = device.memory();
  const auto pipeline = test::load_pipeline(dir / "model", options);
  const auto expected = static_cast<double>(plan_generate(*pipeline, request).peak());
  EXPECT_GT(expected, 50 << 20);
  int64_t least_free = before.free;
  generate(*pipeline, request,
           [&](const Progress&) { least_free = std::min(least_free, device.memory().free); });
  const DeviceMemoryInfo after = device.memory();
  EXPECT_NEAR(static_cast<double>(after.most_held - before.held), expected, 0.05 * expected);
  // The driver hands out pieces of 2 MiB, and keeps some for recordings.
  EXPECT_NEAR(static_cast<double>(before.free - std::min(least_free, after.free)), expected,
              0.05 * expected + (8 << 20));
}

}  // namespace
}  // namespace halftone
