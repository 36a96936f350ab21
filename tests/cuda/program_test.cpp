// Programs on a GPU: recorded launches give what the first run gave, inputs may change, memory
// moves.
#include <gtest/gtest.h>

#include "halftone/kernels/cuda/backend.h"
#include "halftone/passes/fuse.h"
#include "tests/support/backend.h"
#include "tests/support/errors.h"
#include "tests/support/run_graph.h"

namespace halftone {
namespace {

using test::floats;
using test::random_tensor;

std::shared_ptr<Graph> small_graph(int64_t tokens) {
  auto graph = std::make_shared<Graph>();
  const Value x = graph->input("x", {{2, tokens, 64}, DType::kBF16, {}});
  const Value gate = graph->input("gate", {{2, 1, 64}, DType::kF32, {}});
  const Value w = graph->weight("w", {{64, 64}, DType::kF32, {}});
  const Value n = graph->weight("n", {{64}, DType::kF32, {}});
  graph->output("y", x + rms_norm(linear(x, w), n, 1e-5f) * tanh(gate));
  return graph;
}

Weights small_weights() {
  return {{"w", random_tensor({64, 64}, 1, DType::kBF16)}, {"n", random_tensor({64}, 2)}};
}

std::map<std::string, Tensor> inputs_of(int64_t tokens, uint64_t seed) {
  return {{"x", random_tensor({2, tokens, 64}, seed, DType::kBF16)},
          {"gate", random_tensor({2, 1, 64}, seed + 1)}};
}

TEST(CudaProgram, ReplaysWithNewInputsAndSurvivesAMovedArena) {
  const Stream stream = test::tested_stream();
  const Weights weights = to_device(small_weights(), {}, *stream.device);
  const ProgramOptions options{&test::tested_kernels(), stream, /*record=*/true};
  auto arena = std::make_shared<Arena>();
  Program small(fuse(*small_graph(40)), weights, options, arena);
  Program large(fuse(*small_graph(4000)), weights, options, arena);
  const auto expect_right = [&](Program& program, int64_t tokens, uint64_t seed) {
    const auto inputs = inputs_of(tokens, seed);
    const auto reference =
        Program(small_graph(tokens), small_weights(), cpu_scalar_kernels(), {}).run(inputs);
    EXPECT_LE(test::relative_error(floats(program.run(inputs).at("y")), floats(reference.at("y"))),
              3e-3);
  };
  for (uint64_t seed = 10; seed < 50; seed += 10) expect_right(small, 40, seed);
  EXPECT_TRUE(small.recorded());
  expect_right(large, 4000, 60);  // takes a larger arena
  for (uint64_t seed = 70; seed < 100; seed += 10) expect_right(small, 40, seed);
  EXPECT_TRUE(small.recorded());
  EXPECT_EQ(large.device_seconds(3).size(), 3u);
}

TEST(CudaProgram, MergedWeightsAreStackedOnTheWay) {
  const Stream stream = test::tested_stream();
  const Weights host = {{"a", random_tensor({3, 4}, 1)},
                        {"b", random_tensor({5, 4}, 2)},
                        {"c", random_tensor({7}, 3)}};
  const WeightStack stack = {"a", "b"};
  const Weights there = to_device(host, {&stack, 1}, *stream.device);
  EXPECT_EQ(there.size(), 3u);
  const Tensor both = std::get<Tensor>(*stacked(there, stack));
  EXPECT_EQ(both.shape(), (Shape{8, 4}));
  Tensor back = Tensor::empty(DType::kF32, both.shape());
  stream.device->download(back.mutable_bytes(), both.address());
  auto expected = floats(std::get<Tensor>(host.at("a")));
  const auto rest = floats(std::get<Tensor>(host.at("b")));
  expected.insert(expected.end(), rest.begin(), rest.end());
  EXPECT_EQ(floats(back), expected);
}

TEST(CudaProgram, TooLittleMemorySaysHowMuchIsNeededAndFree) {
  const std::string error = test::error_of(
      [&] { test::tested_stream().device->allocate(int64_t{1} << 50, "values while running"); });
  EXPECT_NE(error.find("values while running need 1.00 PiB"), std::string::npos) << error;
  EXPECT_NE(error.find("are free"), std::string::npos) << error;
}

TEST(CudaContext, AGpuThatIsNotThereIsNamed) {
  const std::string error = test::error_of([] { make_cuda_context(99); });
  EXPECT_NE(error.find("cuda:99: there is no such GPU"), std::string::npos) << error;
}

}  // namespace
}  // namespace halftone
