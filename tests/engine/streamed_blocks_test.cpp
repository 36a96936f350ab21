// Models whose blocks stay in the CPU's memory and are streamed to a device, which is made up here:
// what comes out has the bits of a model that is there as a whole.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <thread>

#include "halftone/engine/engine.h"
#include "halftone/io/safetensors_writer.h"
#include "halftone/models/families.h"
#include "tests/support/errors.h"
#include "tests/support/fake_device.h"
#include "tests/support/load_pipeline.h"
#include "tests/support/procedural.h"
#include "tests/support/run_graph.h"
#include "tests/support/silent.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_models.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;
using test::error_of;
using test::floats;
using testing::HasSubstr;

class StreamedBlocks : public testing::TestWithParam<test::TinyModel> {
 protected:
  StreamedBlocks() {
    GetParam().write(folder_);
    kernels_.wide_products = true;  // as on a GPU: linears are merged, and weights are stacked
  }

  LoadOptions on(test::FakeDevice& device, int stream_blocks) const {
    LoadOptions options;
    options.kernels = &kernels_;
    options.stream = {1, &device};
    options.stream_blocks = stream_blocks;
    return options;
  }
  std::unique_ptr<Pipeline> load(const LoadOptions& options) const {
    return test::load_pipeline(folder_, options);
  }
  // Guided, two at a time.
  GenerateRequest request(int64_t scale = 1) const {
    GenerateRequest r;
    r.prompt = "two dogs";
    r.width = GetParam().width;
    r.height = scale * GetParam().height;
    r.steps = 2;
    r.seed = 7;
    r.count = r.batch = 2;
    (GetParam().reads_guidance ? r.true_cfg : r.guidance) = GetParam().guidance;
    return r;
  }
  std::string write_adapter() const {
    const fs::path file = dir_ / "adapter.safetensors";
    const test::TinyModel& m = GetParam();
    write_safetensors(file,
                      {{m.adapted + ".lora_A.weight", test::procedural_weight("a", {4, m.in})},
                       {m.adapted + ".lora_B.weight", test::procedural_weight("b", {m.out, 4})}});
    return file.string();
  }
  // Two shapes and then the first again, without and with an adapter.
  std::vector<std::vector<float>> run(Pipeline& pipeline) const {
    std::vector<std::vector<float>> results;
    for (const int64_t scale : {1, 2, 1}) {
      results.push_back(floats(generate(pipeline, request(scale), test::silent).latents));
    }
    GenerateRequest adapted = request();
    adapted.adapters = {{pipeline.model().load_adapter(write_adapter()), 0.7f}};
    results.push_back(floats(generate(pipeline, adapted, test::silent).latents));
    return results;
  }

  test::TempDir dir_;
  fs::path folder_ = dir_ / "model";
  Kernels kernels_ = cpu_kernels();
};
INSTANTIATE_TEST_SUITE_P(, StreamedBlocks, testing::ValuesIn(test::few_tiny_models()),
                         [](const auto& tested) {
                           std::string name = tested.param.family;
                           std::erase_if(name, [](char c) { return std::isalnum(c) == 0; });
                           return name;
                         });

TEST_P(StreamedBlocks, HaveTheBitsOfResidentOnesInEveryPrecision) {
  for (const Format& format : {formats::bf16, formats::fp8, formats::nvfp4}) {
    std::vector<std::vector<std::vector<float>>> results;
    for (const int count : {0, kAllBlocks, 3}) {
      test::FakeDevice device;
      LoadOptions options = on(device, count);
      options.activations = DType::kBF16;
      if (format.quantized()) options.format = format;
      if (count == 3 && format.quantized()) continue;
      const auto pipeline = load(options);
      results.push_back(run(*pipeline));
      const StreamReport& streamed = pipeline->model().report().streamed;
      EXPECT_GE(streamed.of, 2);
      EXPECT_EQ(streamed.blocks, count == kAllBlocks ? streamed.of : count);
      EXPECT_EQ(device.prefetches, 4 * 2 * streamed.blocks);  // four pictures of two steps
      EXPECT_GT(device.replays, 0);
      EXPECT_EQ(device.under_way(), 0u);
      EXPECT_TRUE(device.fallbacks().empty());
      EXPECT_EQ(results.back(), results.front()) << format.name << ", " << count << " streamed";
    }
    EXPECT_NE(results[0][0], results[0][3]);  // the adapter
    EXPECT_EQ(results[0][0], results[0][2]);
  }
}

// By every byte that is asked of the device, which are fewer than without.
TEST_P(StreamedBlocks, TakeTheMemoryThatWasPlanned) {
  int64_t most[2] = {};
  for (const int count : {0, kAllBlocks}) {
    test::FakeDevice device;
    const auto pipeline = load(on(device, count));
    const GenerateRequest r = request();
    const ModelMemory planned = plan_generate(*pipeline, r);
    generate(*pipeline, r, test::silent);
    const auto expected = static_cast<double>(planned.peak());
    EXPECT_NEAR(static_cast<double>(device.most_held), expected, 0.01 * expected + (64 << 10));
    most[count == 0 ? 0 : 1] = device.most_held;
    const StreamReport& streamed = pipeline->model().report().streamed;
    if (planned.slots != 0) {  // as where decoding takes more memory
      EXPECT_EQ(planned.slots, streamed.slots);
    }
    EXPECT_EQ(planned.streamed_weights > 0, count != 0);
    EXPECT_GE(device.pinned, planned.streamed_weights);
    EXPECT_EQ(device.pinned, streamed.bytes);
    EXPECT_EQ(streamed.resident_blocks > 0, count == 0);
    const std::vector<int64_t>& bytes = pipeline->model().denoiser_part().block_bytes();
    EXPECT_EQ(std::accumulate(bytes.begin(), bytes.end(), int64_t{0}),
              streamed.bytes + streamed.resident_blocks);
    EXPECT_EQ(stream_blocks_within(bytes, streamed.slots).on_device() <= streamed.slots,
              count != 0);
    if (count != 0 && streamed.of > 2) {
      EXPECT_LT(most[1], most[0]);
    }
  }
}

TEST_P(StreamedBlocks, AreSharedByThreads) {
  test::FakeDevice device;
  const auto pipeline = load(on(device, kAllBlocks));
  const auto expected = floats(generate(*pipeline, request(), test::silent).latents);
  std::vector<std::vector<float>> found(2);
  std::vector<std::thread> threads;
  for (auto& result : found) {
    threads.emplace_back([&] {
      Pipeline own(pipeline->shared_model());
      result = floats(generate(own, request(), test::silent).latents);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(found[0], expected);
  EXPECT_EQ(found[1], expected);
}

TEST_P(StreamedBlocks, OfTextEncodersToo) {
  test::FakeDevice device;
  LoadOptions options = on(device, 0);
  const auto expected = floats(generate(*load(options), request(), test::silent).latents);
  options.stream_encoders = true;
  const auto pipeline = load(options);
  EXPECT_EQ(floats(generate(*pipeline, request(), test::silent).latents), expected);
  const ModelPart& encoder = pipeline->model().encoder_part(0);
  EXPECT_GT(encoder.streamed().blocks, 0);
  EXPECT_EQ(encoder.streamed().blocks, encoder.streamed().of);
  EXPECT_GT(device.prefetches, 0);
}

TEST_P(StreamedBlocks, AreRefusedWhereTheyCannotBe) {
  test::FakeDevice device;
  EXPECT_THAT(error_of([&] { load(on(device, 1000)); }),
              HasSubstr("stream-blocks: 1000 are more than the "));
  LoadOptions options = on(device, 1);
  const auto model = load(options)->shared_model();
  QuantizeRecipe recipe = model->denoiser().recipe(formats::fp8);
  EXPECT_THAT(error_of([&] { model->with_recipe(recipe); }), HasSubstr("are not exchanged"));
  options.stream.device = nullptr;
  EXPECT_THAT(error_of([&] { load(options); }),
              HasSubstr("stream-blocks: the CPU reads weights where they are"));
}

// Of a denoiser of full size, as its weights would be stored.
std::vector<int64_t> published_block_bytes(const std::string& family, const Format& format) {
  const auto is_it = [&](const Family& f) { return f.name == family; };
  const auto denoiser = std::ranges::find_if(families(), is_it)->sizes[0].denoiser();
  const auto graph =
      quantize_linears(*denoiser->build(denoiser->smallest_shape(), {}), denoiser->recipe(format))
          .graph;
  std::vector<int64_t> bytes;
  for (const WeightBlock& block : weight_blocks(*graph)) {
    bytes.push_back(0);
    for (const std::string& name : block.weights) {
      const ValueType& type = graph->weights().at(name).type();
      const int64_t rows = type.shape[0], columns = type.shape[1];
      bytes.back() += type.quantized ? quantized_layout(*type.quantized, rows, columns, 1).bytes
                                     : rows * columns * 2;  // bf16
    }
  }
  return bytes;
}

// What is said of FLUX.1 in docs/performance.md.
TEST(PublishedBlocks, OfFlux1AreOneCopyEachAndFitInTwoSlots) {
  const auto bytes = published_block_bytes("flux.1", formats::fp8);
  ASSERT_EQ(bytes.size(), 19u + 38u);
  EXPECT_NEAR(static_cast<double>(bytes.front()), 453e6, 1e6);
  EXPECT_NEAR(static_cast<double>(bytes.back()), 170e6, 1e6);
  const int64_t all = std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
  EXPECT_NEAR(static_cast<double>(all), 15.06e9, 0.02e9);
  EXPECT_EQ(stream_blocks(bytes, kAllBlocks).on_device(), 2 * bytes.front());
  int before = 0;
  for (const int64_t gib : {14, 12, 8, 6, 4, 2}) {
    const BlockPlan plan = stream_blocks_within(bytes, gib << 30);
    EXPECT_LE(plan.on_device(), gib << 30);
    EXPECT_GT(plan.count, before);
    before = plan.count;
  }
  EXPECT_LT(before, 57);
}

// The engine says so, rather than to refuse: --strict does.
TEST(StreamBlocksOfAnEngine, AreAFallbackOnTheCpu) {
  const test::TempDir dir;
  test::tiny_models()[0].write(dir / "model");
  ModelSpec spec;
  spec.path = (dir / "model").string();
  spec.device = "cpu";
  Engine engine;
  for (const char* none : {"auto", "off", "0"}) {
    spec.stream_blocks = none;
    const LoadedModel loaded = engine.load(spec);
    EXPECT_TRUE(loaded.fallbacks.empty());
    EXPECT_EQ(loaded.stream_blocks.used, "off");
  }
  for (const char* some : {"all", "2"}) {
    spec.stream_blocks = some;
    const LoadedModel loaded = engine.load(spec);
    ASSERT_EQ(loaded.fallbacks.size(), 1u);
    EXPECT_EQ(loaded.fallbacks[0], fmt::format("off instead of {}: the CPU reads weights in place, "
                                               "and streams none",
                                               some));
  }
  spec.strict = true;
  EXPECT_THAT(error_of([&] { engine.load(spec); }), HasSubstr("off instead of 2"));
  for (const char* wrong : {"-1", "some", "1.5", ""}) {
    spec.stream_blocks = wrong;
    EXPECT_THAT(error_of([&] { engine.load(spec); }),
                HasSubstr("is not auto, off, all or a number"));
  }
}

}  // namespace
}  // namespace halftone
