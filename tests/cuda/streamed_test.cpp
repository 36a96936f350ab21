// Blocks that are streamed from the CPU's memory: the bits and the memory of that, on a GPU.
#include <gtest/gtest.h>

#include "halftone/graph/ops.h"
#include "halftone/runtime/block_plan.h"
#include "tests/support/backend.h"
#include "tests/support/run_graph.h"

namespace halftone {
namespace {

using test::floats;
using test::random_tensor;

constexpr int kLayers = 9;
constexpr int64_t kWide = 2048;

// Large enough that a copy takes longer than a launch, and products longer than nothing.
std::shared_ptr<Graph> layers() {
  auto graph = std::make_shared<Graph>();
  Value x = graph->input("x", {{1, 256, kWide}, DType::kBF16, {}});
  for (int i = 0; i < kLayers; ++i) {
    const std::string name = "layers." + std::to_string(i);
    const auto region = graph->region("layer", name);
    const ValueType square{{kWide, kWide}, DType::kF32, {}};
    const Value y = rms_norm(x, graph->weight(name + ".norm", {{kWide}, DType::kF32, {}}), 1e-5f);
    const Value a = linear(y, graph->weight(name + ".a", square));
    const Value b = linear(y, graph->weight(name + ".b", square));
    x = x + linear(silu(a) * b, graph->weight(name + ".c", square));
  }
  graph->output("y", x);
  return graph;
}

class CudaStreaming : public testing::Test {
 protected:
  CudaStreaming() {
    CompileOptions how;
    how.can_stack = stack_within(weight_blocks(*graph_));
    compiled_ = compile(*graph_, how, test::tested_kernels(), stream_).graph;
    uint64_t seed = 1;
    for (const auto& [name, value] : graph_->weights()) {
      weights_[name] = random_tensor(value.shape(), seed++, DType::kBF16);
    }
  }
  Weights placed(int streamed) const {
    const auto blocks = weight_blocks(*graph_);
    const BlockPlan plan = stream_blocks(placed_bytes(weights_, blocks), streamed);
    return to_device(weights_, weight_stacks(*compiled_), *stream_.device, plan.chosen(blocks));
  }
  static std::map<std::string, Tensor> inputs(uint64_t seed) {
    return {{"x", random_tensor({1, 256, kWide}, seed, DType::kBF16)}};
  }

  Stream stream_ = test::tested_stream();
  std::shared_ptr<Graph> graph_ = layers(), compiled_;
  Weights weights_;
};

TEST_F(CudaStreaming, HasTheBitsOfResidentBlocksRecordedAndNot) {
  Program resident(compiled_, placed(0), {&test::tested_kernels(), stream_, /*record=*/true});
  for (const bool record : {false, true}) {
    for (const int count : {kLayers, 4, 1}) {
      Program program(compiled_, placed(count), {&test::tested_kernels(), stream_, record});
      for (uint64_t seed = 10; seed < 16; ++seed) {
        EXPECT_EQ(floats(program.run(inputs(seed)).at("y")),
                  floats(resident.run(inputs(seed)).at("y")))
            << count << " streamed, " << (record ? "recorded" : "not recorded");
      }
      EXPECT_EQ(program.recorded(), record);
      // Many at once, without a look at the results between them.
      program.device_seconds(50);
      EXPECT_EQ(floats(program.output("y")), floats(resident.output("y")));
    }
  }
}

TEST_F(CudaStreaming, OthersRunInTheSameMemoryInTurn) {
  const auto arena = std::make_shared<Arena>();
  const Weights there = placed(kLayers);
  const ProgramOptions how{&test::tested_kernels(), stream_, /*record=*/true};
  Program a(compiled_, there, how, arena), b(compiled_, there, how, arena);
  Program resident(compiled_, placed(0), how);
  for (uint64_t seed = 10; seed < 16; ++seed) {
    const auto expected = floats(resident.run(inputs(seed)).at("y"));
    EXPECT_EQ(floats(a.run(inputs(seed)).at("y")), expected);
    EXPECT_EQ(floats(b.run(inputs(seed)).at("y")), expected);
  }
}

TEST_F(CudaStreaming, HoldsWhatWasPlanned) {
  DeviceContext& device = *stream_.device;
  {  // Algorithms are chosen, which takes memory of its own.
    Program program(compiled_, placed(kLayers), {&test::tested_kernels(), stream_, true});
    for (uint64_t seed = 10; seed < 13; ++seed) program.run(inputs(seed));
  }
  device.synchronize();
  device.forget_most_held();
  const int64_t before = device.memory().held;
  const Weights there = placed(kLayers);
  Program program(compiled_, there, {&test::tested_kernels(), stream_, true});
  for (uint64_t seed = 10; seed < 13; ++seed) program.run(inputs(seed));
  const MemoryUse& memory = program.memory();
  const int64_t block = 3 * kWide * kWide * 2;
  EXPECT_EQ(memory.slots, 2 * block);
  EXPECT_EQ(memory.streamed, kLayers * block);
  const auto planned = static_cast<double>(memory.weights + memory.in_arena() + memory.resident);
  EXPECT_NEAR(static_cast<double>(device.memory().most_held - before), planned,
              0.05 * planned + (64 << 10));
  EXPECT_LT(planned, 0.75 * static_cast<double>(kLayers * block));
  for (const std::string& line : device.fallbacks()) {
    EXPECT_EQ(line.find("pinned"), std::string::npos) << line;
  }
}

}  // namespace
}  // namespace halftone
