// Weights that are streamed to a device block by block: which copies are made when, and that
// nothing is read before it is there or after it is gone.
#include <gtest/gtest.h>

#include "halftone/graph/ops.h"
#include "halftone/passes/autodiff.h"
#include "halftone/passes/compile.h"
#include "halftone/runtime/block_plan.h"
#include "halftone/runtime/program.h"
#include "tests/support/errors.h"
#include "tests/support/fake_device.h"
#include "tests/support/run_graph.h"

namespace halftone {
namespace {

using Reads = std::vector<std::vector<int>>;
using Loads = std::vector<BlockLoad>;

TEST(BlockLoads, FillOneSlotWhileTheOtherIsRead) {
  // What reads no block (node 2) is in no stage.
  EXPECT_EQ(plan_block_loads(Reads{{0}, {0}, {}, {1}, {2}, {2}, {3}}, 2),
            (Loads{{0, 0, 0, 1, -1}, {1, 1, 3, 3, -1}, {2, 0, 4, 5, 1}, {3, 1, 6, 6, 3}}));
  EXPECT_TRUE(plan_block_loads(Reads{{}, {}}, 2).empty());
}

TEST(BlockLoads, BackwardsWhatStillLiesThereIsNotCopiedAgain) {
  EXPECT_EQ(plan_block_loads(Reads{{0}, {1}, {2}, {3}, {3}, {2}, {1}, {0}}, 2),
            (Loads{{0, 0, 0, 0, -1},
                   {1, 1, 1, 1, -1},
                   {2, 0, 2, 5, 0},
                   {3, 1, 3, 4, 1},
                   {1, 1, 6, 6, 4},
                   {0, 0, 7, 7, 5}}));
}

TEST(BlockLoads, ANodeMayReadAsManyBlocksAsThereAreSlots) {
  EXPECT_EQ(plan_block_loads(Reads{{0}, {0, 1}, {1, 2}, {2}}, 2),
            (Loads{{0, 0, 0, 1, -1}, {1, 1, 1, 2, -1}, {2, 0, 2, 3, 1}}));
  // One after the other in one slot.
  EXPECT_EQ(plan_block_loads(Reads{{0}, {1}, {0}}, 1),
            (Loads{{0, 0, 0, 0, -1}, {1, 0, 1, 1, 0}, {0, 0, 2, 2, 1}}));
}

// However blocks are read: each lies in its slot while it is, nobody writes there meanwhile, and a
// copy may begin as soon as the slot is free.
TEST(BlockLoads, NeverOverwriteWhatIsStillRead) {
  uint64_t state = 7;
  const auto random = [&](uint64_t below) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return static_cast<int>((state >> 33) % below);
  };
  for (int slots = 1; slots <= 4; ++slots) {
    for (int round = 0; round < 50; ++round) {
      Reads reads(40);
      for (auto& blocks : reads) {
        for (int count = random(static_cast<uint64_t>(slots) + 1); count > 0; --count) {
          const int block = random(7);
          if (std::find(blocks.begin(), blocks.end(), block) == blocks.end()) {
            blocks.push_back(block);
          }
        }
      }
      const Loads loads = plan_block_loads(reads, slots);
      for (size_t i = 0; i < loads.size(); ++i) {
        const BlockLoad& load = loads[i];
        EXPECT_LT(load.after, load.first);
        EXPECT_TRUE(i == 0 || loads[i - 1].first <= load.first);
        int before = -1;
        for (size_t k = 0; k < i; ++k) {
          if (loads[k].slot == load.slot) before = loads[k].last;
        }
        EXPECT_EQ(load.after, before);
      }
      for (size_t node = 0; node < reads.size(); ++node) {
        for (const int block : reads[node]) {
          const auto covers = [&](const BlockLoad& load) {
            return load.block == block && load.first <= static_cast<int>(node) &&
                   static_cast<int>(node) <= load.last;
          };
          EXPECT_EQ(std::count_if(loads.begin(), loads.end(), covers), 1);
        }
      }
    }
  }
}

TEST(BlockPlan, SpreadsStreamedBlocksBehindTheFirst) {
  const std::vector<int64_t> bytes = {10, 10, 10, 10, 20, 10};
  const BlockPlan two = stream_blocks(bytes, 2);
  EXPECT_EQ(two.streams, (std::vector<bool>{false, false, true, false, false, true}));
  EXPECT_EQ(two.resident, 50);
  EXPECT_EQ(two.streamed, 20);
  EXPECT_EQ(two.slots, 20);
  EXPECT_EQ(stream_blocks(bytes, 5).streams[0], false);
  EXPECT_EQ(stream_blocks(bytes, 5).slots, 40);
  const BlockPlan all = stream_blocks(bytes, kAllBlocks);
  EXPECT_EQ(all.count, 6);
  EXPECT_EQ(all.on_device(), 40);
  EXPECT_EQ(stream_blocks(bytes, 1).slots, 10);
  EXPECT_EQ(stream_blocks({}, kAllBlocks).on_device(), 0);
}

TEST(BlockPlan, TheFewestThatFitAreStreamed) {
  const std::vector<int64_t> bytes = {10, 10, 10, 10, 10, 10};
  EXPECT_EQ(stream_blocks_within(bytes, 60).count, 0);
  EXPECT_EQ(stream_blocks_within(bytes, 59).count, 3);  // one or two would save nothing
  EXPECT_EQ(stream_blocks_within(bytes, 20).count, 6);
  EXPECT_EQ(stream_blocks_within(bytes, 19).count, 6);
  EXPECT_GT(stream_blocks_within(bytes, 19).on_device(), 19);
  for (int64_t budget = 20; budget <= 60; ++budget) {
    const BlockPlan plan = stream_blocks_within(bytes, budget);
    EXPECT_LE(plan.on_device(), budget);
    EXPECT_EQ(plan.resident + plan.streamed, 60);
  }
}

constexpr int kBlocks = 5;

// Blocks of two linears each with a norm between them, and a linear outside.
struct Blocks {
  explicit Blocks(int64_t width = 32) {
    const ValueType vector{{width}, DType::kF32, {}};
    Value x = graph->input("x", {{2, 8, width}, DType::kF32, {}});
    for (int i = 0; i < kBlocks; ++i) {
      const std::string name = "layers." + std::to_string(i);
      const auto region = graph->region("layer", name);
      // The block in the middle is larger than the others.
      const int64_t wide = i == 2 ? 3 * width : 2 * width;
      const Value a = graph->weight(name + ".a", {{wide, width}, DType::kF32, {}});
      const Value b = graph->weight(name + ".b", {{wide, width}, DType::kF32, {}});
      const Value down = graph->weight(name + ".down", {{width, wide}, DType::kF32, {}});
      const Value y = rms_norm(x, graph->weight(name + ".norm", vector), 1e-5f);
      x = x + linear(silu(linear(y, a)) * linear(y, b), down);
    }
    graph->output("y", linear(x, graph->weight("last", {{8, width}, DType::kF32, {}})));
    uint64_t seed = 1;
    for (const auto& [name, value] : graph->weights()) {
      weights[name] = test::random_tensor(value.shape(), seed++);
    }
  }

  // Streamed are those blocks from `first` on, and matrices that are stacked lie together.
  Weights streamed(const Graph& compiled, DeviceContext& on, size_t first = 0) const {
    const auto blocks = weight_blocks(*graph);
    return to_device(weights, weight_stacks(compiled), on, std::span(blocks).subspan(first));
  }
  std::shared_ptr<Graph> compiled() {
    CompileOptions how;
    how.can_stack = stack_within(weight_blocks(*graph));
    Kernels kernels = cpu_kernels();
    kernels.wide_products = true;
    return compile(*graph, how, kernels, {1, &device}).graph;
  }
  std::vector<float> expected(const Tensor& x) const {
    return test::floats(Program(graph, weights, cpu_kernels(), {1}).run({{"x", x}}).at("y"));
  }

  std::shared_ptr<Graph> graph = std::make_shared<Graph>();
  Weights weights;
  test::FakeDevice device;
};

TEST(WeightBlocks, AreWhatProductsOfOneRegionAloneRead) {
  Blocks t;
  const auto blocks = weight_blocks(*t.graph);
  ASSERT_EQ(blocks.size(), size_t{kBlocks});
  EXPECT_EQ(blocks[3].name, "layers.3");
  EXPECT_EQ(blocks[3].weights,
            (std::vector<std::string>{"layers.3.a", "layers.3.b", "layers.3.down"}));
  {  // one that another block reads, too
    const auto region = t.graph->region("layer", "again");
    t.graph->output("z", linear(t.graph->input("z", {{2, 32}, DType::kF32, {}}),
                                t.graph->weights().at("layers.3.a")));
  }
  EXPECT_EQ(weight_blocks(*t.graph)[3].weights,
            (std::vector<std::string>{"layers.3.b", "layers.3.down"}));
}

TEST(StreamedProgram, HasTheBitsOfAResidentOneRecordedAndNot) {
  for (const bool record : {false, true}) {
    for (const size_t first : {size_t{0}, size_t{2}}) {
      Blocks t;
      const auto graph = t.compiled();
      EXPECT_GE(weight_stacks(*graph).size(), size_t{kBlocks});
      const Weights there = t.streamed(*graph, t.device, first);
      EXPECT_EQ(host_block_of(there.at("layers.4.a"))->name(), "layers.4");
      EXPECT_EQ(host_block_of(there.at("layers.4.norm")), nullptr);
      Program program(graph, there, {&cpu_kernels(), {1, &t.device}, record});
      for (uint64_t seed = 2; seed < 6; ++seed) {
        const Tensor x = test::random_tensor({2, 8, 32}, seed);
        EXPECT_EQ(test::floats(program.run({{"x", x}}).at("y")), t.expected(x));
        EXPECT_EQ(t.device.under_way(), 0u);
      }
      EXPECT_EQ(program.recorded(), record);
      EXPECT_EQ(t.device.prefetches, 4 * (kBlocks - static_cast<int>(first)));
      EXPECT_EQ(t.device.most_under_way, 2u);  // at the start; then one goes on beside the other
      EXPECT_TRUE(t.device.fallbacks().empty());
    }
  }
}

TEST(StreamedProgram, HoldsWhatItPlanned) {
  Blocks t;
  const auto graph = t.compiled();
  const Weights there = t.streamed(*graph, t.device);
  const int64_t resident = *t.device.held;
  Program program(graph, there, {&cpu_kernels(), {1, &t.device}});
  const MemoryUse& memory = program.memory();
  int64_t largest = 0, all = 0;
  for (const int64_t bytes : placed_bytes(t.weights, weight_blocks(*t.graph))) {
    largest = std::max(largest, bytes);
    all += bytes;
  }
  EXPECT_EQ(memory.slots, 2 * largest);
  EXPECT_EQ(memory.streamed, all);
  EXPECT_EQ(t.device.pinned, all);
  EXPECT_EQ(memory.weights, (8 * 32 + kBlocks * 32) * 4);
  EXPECT_LT(resident, all / 4);
  program.run({{"x", test::random_tensor({2, 8, 32}, 2)}});
  EXPECT_EQ(t.device.held->load(),
            resident + memory.slots + memory.arena + memory.workspace + memory.resident);
}

// One slot of its own would be as large as the block.
TEST(StreamedProgram, ASingleBlockHasOneSlot) {
  Blocks t;
  const auto graph = t.compiled();
  Program program(graph, t.streamed(*graph, t.device, kBlocks - 1),
                  {&cpu_kernels(), {1, &t.device}});
  EXPECT_EQ(program.memory().slots, program.memory().streamed);
  const Tensor x = test::random_tensor({2, 8, 32}, 2);
  EXPECT_EQ(test::floats(program.run({{"x", x}}).at("y")), t.expected(x));
}

TEST(StreamedProgram, SharesItsArenaWithOthersThatRunInTurn) {
  Blocks t;
  const auto graph = t.compiled();
  const Weights there = t.streamed(*graph, t.device);
  const auto arena = std::make_shared<Arena>();
  const ProgramOptions how{&cpu_kernels(), {1, &t.device}, /*record=*/true};
  Program first(graph, there, how, arena), second(graph, there, how, arena);
  for (uint64_t seed = 2; seed < 6; ++seed) {
    const Tensor x = test::random_tensor({2, 8, 32}, seed), y = test::random_tensor({2, 8, 32}, 9);
    EXPECT_EQ(test::floats(first.run({{"x", x}}).at("y")), t.expected(x));
    EXPECT_EQ(test::floats(second.run({{"x", y}}).at("y")), t.expected(y));
  }
}

// What runs next in the same memory must not find copies on their way there.
TEST(StreamedProgram, ARunThatIsEndedLeavesNoCopyUnderWay) {
  Blocks t;
  const auto graph = t.compiled();
  int asked = 0;
  ProgramOptions how{&cpu_kernels(), {1, &t.device}};
  how.cancelled = [&] { return ++asked == 5; };
  Program program(graph, t.streamed(*graph, t.device), how);
  const Tensor x = test::random_tensor({2, 8, 32}, 2);
  EXPECT_EQ(test::error_of([&] { program.run({{"x", x}}); }), "interrupted");
  EXPECT_GT(t.device.prefetches, 0);
  EXPECT_EQ(t.device.under_way(), 0u);
  EXPECT_EQ(test::floats(program.run({{"x", x}}).at("y")), t.expected(x));
}

TEST(StreamedProgram, TakesNoOtherMemoryOfTheCpu) {
  Blocks t;
  Weights wrong = to_device(t.weights, {}, t.device);
  wrong["last"] = t.weights.at("last");
  EXPECT_EQ(test::error_of([&] { Program(t.graph, wrong, cpu_kernels(), {1, &t.device}); }),
            "weights: 'last' is in the CPU's memory");
}

// Blocks come back in the reverse order, where gradients read what the forward pass has read.
TEST(StreamedProgram, GradientsReadBlocksInReverse) {
  Blocks t;
  std::shared_ptr<Graph> graphs[2];
  for (auto& graph : graphs) {
    CompileOptions how;
    how.can_stack = [](const std::string&, const std::string&) { return false; };
    how.extend = [](Graph& g) {
      const Value y = g.outputs().at("y");
      const Value x = g.inputs().at("x"), norm = g.weights().at("layers.0.norm");
      const Value wrt[] = {x, norm};
      const auto gradients = differentiate(sum_to(y * y, {1}), wrt);
      g.output("dx", gradients[0]);
      g.output("dnorm", gradients[1]);
    };
    graph = compile(*t.graph, how, cpu_kernels(), {1, &t.device}).graph;
  }
  const Tensor x = test::random_tensor({2, 8, 32}, 2);
  const auto expected = Program(graphs[0], t.weights, cpu_kernels(), {1}).run({{"x", x}});
  Program program(graphs[1], t.streamed(*graphs[1], t.device), {&cpu_kernels(), {1, &t.device}});
  const auto found = program.run({{"x", x}});
  for (const char* name : {"y", "dx", "dnorm"}) {
    EXPECT_EQ(test::floats(found.at(name)), test::floats(expected.at(name))) << name;
  }
  // Forward all, back all but the two that still lie there.
  EXPECT_EQ(t.device.prefetches, 2 * kBlocks - 2);
}

}  // namespace
}  // namespace halftone
