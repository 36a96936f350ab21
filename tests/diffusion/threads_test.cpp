// A picture is the same, bit for bit, whatever the number of threads.
#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "halftone/engine/generate.h"
#include "tests/support/load_pipeline.h"
#include "tests/support/sanitizers.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_zimage.h"

namespace halftone {
namespace {

TEST(Threads, DoNotChangeAPictureInAnyPrecision) {
  const test::TempDir dir;
  const std::filesystem::path data = HALFTONE_TEST_DATA;
  const auto description = test::one_layer_zimage();
  test::write_zimage_folder(dir / "model", description, data / "tokenizer" / "tokenizer.json");
  for (const Format& format : all_formats()) {
    std::optional<Tensor> latents, picture;                    // of one thread
    if (test::kSanitized && format != formats::fp8) continue;  // one is enough to watch
    for (const int threads : {1, 2, 3, 8}) {
      LoadOptions options;
      options.activations = format == formats::fp32 ? DType::kF32 : DType::kBF16;
      if (format.quantized()) options.format = format;
      options.kernels = &cpu_kernels();
      options.stream = {threads};
      GenerateRequest request;
      request.prompt = "a";
      request.width = 96;
      request.height = 64;
      request.steps = 2;
      const auto model = test::load_pipeline(dir / "model", options);
      const Tensor now = generate(*model, request, [](const Progress&) {}).latents;
      const Tensor decoded = model->decode(now);
      if (!latents) latents = now, picture = decoded;
      const auto same = [](const Tensor& a, const Tensor& b) {
        return std::memcmp(a.bytes().data(), b.bytes().data(), a.bytes().size()) == 0;
      };
      EXPECT_TRUE(same(now, *latents)) << format.name << ", " << threads << " threads";
      EXPECT_TRUE(same(decoded, *picture)) << format.name << ", " << threads << " threads";
    }
  }
}

}  // namespace
}  // namespace halftone
