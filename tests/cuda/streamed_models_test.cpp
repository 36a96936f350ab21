// Tiny models with blocks that are streamed, on a GPU.
#include <gtest/gtest.h>

#include "tests/support/load_pipeline.h"
#include "tests/support/run_graph.h"
#include "tests/support/silent.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tested_options.h"
#include "tests/support/tiny_models.h"

namespace halftone {
namespace {

using test::floats;

class CudaStreamedModel : public testing::TestWithParam<test::TinyModel> {
 protected:
  CudaStreamedModel() { GetParam().write(dir_ / "model"); }

  LoadOptions options(const char* precision, int stream_blocks) const {
    LoadOptions options = test::tested_options();
    const Format format = *find_format(precision);
    options.activations = DType::kBF16;
    if (format.quantized()) options.format = format;
    options.stream_blocks = stream_blocks;
    options.stream_encoders = stream_blocks > 0;
    return options;
  }
  std::vector<float> latents(const LoadOptions& options) const {
    const auto pipeline = test::load_pipeline(dir_ / "model", options);
    EXPECT_EQ(pipeline->model().report().streamed.blocks > 0, options.stream_blocks > 0);
    GenerateRequest r;
    r.prompt = "two dogs";
    r.width = GetParam().width;
    r.height = GetParam().height;
    r.steps = 4;
    r.count = r.batch = 2;
    return floats(generate(*pipeline, r, test::silent).latents);
  }

  test::TempDir dir_;
};
INSTANTIATE_TEST_SUITE_P(, CudaStreamedModel, testing::ValuesIn(test::tiny_models()),
                         [](const auto& tested) {
                           std::string name = tested.param.family;
                           std::erase_if(name, [](char c) { return std::isalnum(c) == 0; });
                           return name;
                         });

// Node by node the products are the same ones. Compiled, modulation is one product for all blocks
// that are on the device, whose sums may be formed in another order.
TEST_P(CudaStreamedModel, HasTheBitsOfAResidentOne) {
  for (const char* precision : {"bf16", "fp8", "nvfp4"}) {
    LoadOptions resident = options(precision, 0), streamed = options(precision, kAllBlocks);
    EXPECT_LE(test::relative_error(latents(streamed), latents(resident)), 2e-2) << precision;
    EXPECT_EQ(latents(streamed), latents(streamed)) << precision;
    resident.compile = streamed.compile = false;
    EXPECT_EQ(latents(streamed), latents(resident)) << precision;
  }
}

}  // namespace
}  // namespace halftone
