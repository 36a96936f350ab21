#include "halftone/runtime/program.h"

#include <gtest/gtest.h>

#include "halftone/base/error.h"
#include "halftone/passes/autodiff.h"
#include "halftone/passes/fuse.h"
#include "tests/support/errors.h"
#include "tests/support/fake_device.h"
#include "tests/support/run_graph.h"

namespace halftone {
namespace {

TEST(Plan, ValuesThatLiveTogetherDoNotOverlap) {
  auto graph = std::make_shared<Graph>();
  Value x = graph->input("x", {{64}, DType::kF32, {}});
  std::vector<Value> kept;
  for (int i = 0; i < 8; ++i) {
    x = affine(x, 1, 1);
    if (i % 3 == 0) kept.push_back(x);
  }
  for (const Value& value : kept) x = x + value;
  graph->output("y", x);
  const MemoryPlan plan = plan_memory(*graph);
  // Three are kept while two more are at work; eleven without sharing.
  EXPECT_LE(plan.arena_bytes, 5 * 256);
  auto result =
      Program(graph, {}, cpu_scalar_kernels(), {}).run({{"x", Tensor::zeros(DType::kF32, {64})}});
  EXPECT_EQ(result.at("y").as<float>()[63], 8 + 1 + 4 + 7);
}

TEST(Plan, ReshapesShareBytesAndUnusedNodesAreNotRun) {
  auto graph = std::make_shared<Graph>();
  const Value x = graph->input("x", {{4, 4}, DType::kF32, {}});
  const Value y = affine(x, 2, 0);
  affine(y, 3, 0);  // nobody asks for it
  graph->output("y", reshape(y, {16}));
  const MemoryPlan plan = plan_memory(*graph);
  EXPECT_EQ(plan.arena_bytes, 256);
  EXPECT_EQ(plan.runs, (std::vector<bool>{true, false, false}));  // a reshape computes nothing
}

TEST(Plan, GradientsOfFrozenWeightsAreNotComputed) {
  auto graph = std::make_shared<Graph>();
  const Value x = graph->input("x", {{4, 64}, DType::kF32, {}});
  const Value w = graph->input("w", {{64}, DType::kF32, {}});
  const Value loss = sum_to(rms_norm(x, w, 1e-5f), {1});
  const Value wrt[] = {x};
  graph->output("dx", differentiate(loss, wrt)[0]);
  const MemoryPlan plan = plan_memory(*graph);
  int left_out = 0;
  for (const Node& node : graph->nodes()) {
    if (node.op != Op::kRmsNormGrad) continue;
    EXPECT_NE(plan.offset[node.outputs[0]], MemoryPlan::kOutside);
    left_out += plan.offset[node.outputs[1]] == MemoryPlan::kOutside;
  }
  EXPECT_EQ(left_out, 1);
  const std::map<std::string, Tensor> inputs = {{"x", test::random_tensor({4, 64}, 1)},
                                                {"w", test::random_tensor({64}, 2)}};
  for (const Kernels* kernels : {&cpu_scalar_kernels(), &cpu_kernels()}) {
    const auto dx = Program(graph, {}, *kernels, {}).run(inputs).at("dx");
    // Along x nothing changes, but for eps.
    double along = 0;
    for (int64_t i = 0; i < 64; ++i) along += dx.as<float>()[i] * inputs.at("x").as<float>()[i];
    EXPECT_NEAR(along, 0, 1e-3);
  }
}

// Pieces are computed where a concat puts them, and parts are read where they lie.
TEST(Plan, ConcatsAndPartsOfOnePictureCopyNothing) {
  for (const int64_t batch : {1, 2}) {
    auto graph = std::make_shared<Graph>();
    const Value a = graph->input("a", {{batch, 8, 32}, DType::kF32, {}});
    const Value b = graph->input("b", {{batch, 16, 32}, DType::kF32, {}});
    const Value x = affine(a, 2, 0), y = reshape(affine(b, 2, 1), {batch, 16, 2, 16});
    const Value both = concat({reshape(x, {batch, 8, 2, 16}), y}, 1);
    const Value more = concat({both, affine(both, 1, 1)}, 1);
    graph->output("back", affine(slice(more, 1, 8, 24), 1, 0));
    graph->output("x", affine(x, 1, 0));  // read where it lies in both
    graph->output("sum", affine(more, -1, 0));
    const MemoryPlan plan = plan_memory(*graph);
    int copies = 0;
    for (size_t i = 0; i < graph->nodes().size(); ++i) {
      const Op op = graph->nodes()[i].op;
      copies += plan.runs[i] && (op == Op::kConcat || op == Op::kSlice);
    }
    EXPECT_EQ(copies, batch == 1 ? 0 : 3);
    if (batch == 1) {
      EXPECT_EQ(plan.storage[x.id()], more.id());
      EXPECT_EQ(plan.offset[y.id()] - plan.offset[x.id()], 8 * 32 * 4);
    }
    const std::map<std::string, Tensor> inputs = {{"a", test::random_tensor(a.shape(), 1)},
                                                  {"b", test::random_tensor(b.shape(), 2)}};
    const auto result = Program(graph, {}, cpu_scalar_kernels(), {}).run(inputs);
    const auto in_a = inputs.at("a").as<float>(), in_b = inputs.at("b").as<float>();
    for (int64_t i = 0; i < batch; ++i) {
      for (int64_t j = 0; j < 16 * 32; ++j) {
        const float wanted = in_b[i * 512 + j] * 2 + 1;
        ASSERT_EQ(result.at("back").as<float>()[i * 512 + j], wanted);
        ASSERT_EQ(result.at("sum").as<float>()[i * 1536 + 256 + j], -wanted);
        ASSERT_EQ(result.at("sum").as<float>()[i * 1536 + 768 + 256 + j], -(wanted + 1));
      }
      for (int64_t j = 0; j < 8 * 32; ++j) {
        ASSERT_EQ(result.at("x").as<float>()[i * 256 + j], in_a[i * 256 + j] * 2);
        ASSERT_EQ(result.at("sum").as<float>()[i * 1536 + j], -in_a[i * 256 + j] * 2);
      }
    }
  }
}

// What is there already, twice, a part itself, or would begin where wide accesses may not.
TEST(Plan, PiecesThatCannotBeComputedInPlaceAreCopied) {
  auto graph = std::make_shared<Graph>();
  const Value a = graph->input("a", {{1, 8, 32}, DType::kF32, {}});
  const Value w = graph->weight("w", {{1, 8, 32}, DType::kF32, {}});
  const Value x = affine(a, 2, 0), part = slice(x, 1, 0, 4);
  const Value small = affine(slice(a, 2, 0, 1), 1, 1);  // [1, 8, 1]: 32 bytes
  const Value more = affine(slice(a, 2, 1, 2), 1, 1);
  graph->output("twice", concat({x, x}, 1));
  graph->output("given", concat({a, affine(w, 1, 0), x}, 1));
  graph->output("part", concat({part, affine(a, 1, 0)}, 1));
  graph->output("odd", concat({small, more}, 1));
  const Tensor in = test::random_tensor({1, 8, 32}, 3), weight = test::random_tensor({1, 8, 32}, 4);
  const auto result = Program(graph, {{"w", weight}}, cpu_scalar_kernels(), {}).run({{"a", in}});
  const auto at = [&](const char* name, size_t i) { return result.at(name).as<float>()[i]; };
  const auto v = in.as<float>();
  for (size_t i = 0; i < 256; ++i) {
    ASSERT_EQ(at("twice", i), 2 * v[i]);
    ASSERT_EQ(at("twice", 256 + i), 2 * v[i]);
    ASSERT_EQ(at("given", i), v[i]);
    ASSERT_EQ(at("given", 256 + i), weight.as<float>()[i]);
    ASSERT_EQ(at("given", 512 + i), 2 * v[i]);
    ASSERT_EQ(at("part", 128 + i), v[i]);
    if (i < 128) {
      ASSERT_EQ(at("part", i), 2 * v[i]);
    }
    if (i < 8) {
      ASSERT_EQ(at("odd", i), v[32 * i] + 1);
    }
    if (i < 8) {
      ASSERT_EQ(at("odd", 8 + i), v[32 * i + 1] + 1);
    }
  }
}

TEST(Program, ListsEveryWeightThatDoesNotFitInOneError) {
  auto graph = std::make_shared<Graph>();
  const Value x = graph->input("x", {{2, 3}, DType::kF32, {}});
  const Value w = graph->weight("a.weight", {{4, 3}, DType::kF32, {}});
  const Value b = graph->weight("a.bias", {{4}, DType::kF32, {}});
  graph->output("y", linear(x, w, b));
  const Weights wrong = {{"a.weight", Tensor::zeros(DType::kF32, {3, 4})}};
  EXPECT_EQ(test::error_of([&] { Program(graph, wrong, cpu_scalar_kernels(), {}); }),
            "weights: 'a.bias' is missing; 'a.weight' has shape [3, 4] instead of [4, 3]");
  const Weights right = {{"a.weight", Tensor::zeros(DType::kBF16, {4, 3})},
                         {"a.bias", Tensor::zeros(DType::kF32, {4})}};
  Program program(graph, right, cpu_scalar_kernels(), {});
  EXPECT_EQ(program.memory().weights, 4 * 3 * 2 + 4 * 4);
  EXPECT_EQ(test::error_of([&] { program.run({}); }), "x: input is missing");
  EXPECT_EQ(test::error_of([&] { program.run({{"x", Tensor::zeros(DType::kF32, {2, 2})}}); }),
            "x: input is F32 [2, 2] instead of F32 [2, 3]");
}

TEST(Autodiff, SumsOverUsesAndGivesZerosWhereThereIsNoPath) {
  auto graph = std::make_shared<Graph>();
  const Value x = graph->input("x", {{3}, DType::kF32, {}}),
              z = graph->input("z", {{2}, DType::kF32, {}});
  const Value loss = sum_to(x * x + x, {1});
  const Value wrt[] = {x, z};
  const auto gradients = differentiate(loss, wrt);
  graph->output("dx", gradients[0]);
  graph->output("dz", gradients[1]);
  auto results =
      Program(graph, {}, cpu_scalar_kernels(), {})
          .run({{"x", test::f32_tensor({3}, {1, 2, 3})}, {"z", test::f32_tensor({2}, {1, 1})}});
  EXPECT_EQ(test::floats(results.at("dx")), (std::vector<float>{3, 5, 7}));
  EXPECT_EQ(test::floats(results.at("dz")), (std::vector<float>{0, 0}));
}

// y = x w^T + c, with a constant.
struct OnDevice {
  OnDevice() {
    const Value x = graph->input("x", {{2, 4}, DType::kF32, {}});
    const Value w = graph->weight("w", {{3, 4}, DType::kF32, {}});
    const Value c = graph->constant("c", test::f32_tensor({3}, {1, 2, 3}));
    graph->output("y", linear(x, w) + c);
  }
  std::vector<float> expected(const Tensor& x) const {
    return test::floats(Program(graph, weights, cpu_kernels(), {1}).run({{"x", x}}).at("y"));
  }
  std::shared_ptr<Graph> graph = std::make_shared<Graph>();
  Weights weights = {{"w", test::random_tensor({3, 4}, 1)}};
  test::FakeDevice device;
};

TEST(DeviceProgram, RunsOnceThenRecordsThenReplays) {
  OnDevice t;
  const Weights there = to_device(t.weights, {}, t.device);
  EXPECT_EQ(std::get<Tensor>(there.at("w")).device(), t.device.device());
  Program program(t.graph, there, {&cpu_kernels(), {1, &t.device}, /*record=*/true});
  for (uint64_t seed = 2; seed < 6; ++seed) {
    const Tensor x = test::random_tensor({2, 4}, seed);
    EXPECT_EQ(test::floats(program.run({{"x", x}}).at("y")), t.expected(x));
  }
  EXPECT_EQ(t.device.recordings, 1);
  EXPECT_EQ(t.device.replays, 3);
  EXPECT_EQ(t.device.uploads, 1 + 1 + 4);  // the weight and the constant once, x each time
  EXPECT_TRUE(program.recorded());
  EXPECT_TRUE(t.device.fallbacks().empty());
  EXPECT_EQ(program.device_seconds(2).size(), 2u);
}

// Each output is told of when it is there, and before what comes after it: recorded, too.
TEST(Program, TellsOfGroupsOfOutputsWhenTheyAreThere) {
  auto graph = std::make_shared<Graph>();
  const Value x = graph->input("x", {{64}, DType::kF32, {}});
  const Value a = affine(x, 1, 1), b = reshape(affine(a, 2, 0), {8, 8}), c = affine(b, 1, 1);
  graph->output("a", a);
  graph->output("b", b);
  graph->output("c", c);
  graph->output("x", x);
  for (const bool on_device : {false, true}) {
    SCOPED_TRACE(on_device);
    test::FakeDevice device;
    int nodes = 0;
    ProgramOptions options{&cpu_kernels(), {1, on_device ? &device : nullptr}, on_device};
    options.cancelled = [&] { return ++nodes < 0; };
    Program program(graph, {}, options);
    program.set_groups({{"c"}, {"b", "a"}, {}, {"x"}});
    EXPECT_EQ(program.order_of_groups(), (std::vector<size_t>{2, 3, 1, 0}));
    for (int run = 0; run < 4; ++run) {
      nodes = 0;
      const auto start = static_cast<float>(run);
      Tensor given = Tensor::zeros(DType::kF32, {64});
      std::ranges::fill(given.mutable_as<float>(), start);
      program.set_input("x", given);
      std::vector<size_t> told;
      program.run_in_groups([&](size_t group) {
        told.push_back(group);
        const int expected[] = {3, 2, 0, 0};
        EXPECT_EQ(nodes, expected[group]) << "group " << group;
        const char* const outputs[] = {"c", "b", "x", "x"};
        const float values[] = {2 * (start + 1) + 1, 2 * (start + 1), start, start};
        if (group == 3) return;  // an input, which is there already
        EXPECT_EQ(program.output(outputs[group]).as<float>()[63], values[group]);
      });
      EXPECT_EQ(told, (std::vector<size_t>{2, 3, 1, 0}));
    }
    program.run();  // nobody is told
    EXPECT_EQ(program.output("c").as<float>()[0], 9);
    EXPECT_EQ(device.recordings, on_device ? 2 : 0) << "what lies between";
    EXPECT_EQ(device.replays, on_device ? 2 * 4 : 0);
  }
}

TEST(DeviceProgram, ARecordingThatFailsIsSaidAndNotFatal) {
  OnDevice t;
  t.device.refuse_to_record = true;
  Program program(t.graph, to_device(t.weights, {}, t.device),
                  {&cpu_kernels(), {1, &t.device}, /*record=*/true});
  const Tensor x = test::random_tensor({2, 4}, 2);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(test::floats(program.run({{"x", x}}).at("y")), t.expected(x));
  }
  EXPECT_FALSE(program.recorded());
  ASSERT_EQ(t.device.fallbacks().size(), 1u);
  EXPECT_EQ(t.device.fallbacks()[0],
            "launches are not recorded but made one by one: fake: does not record");
}

TEST(DeviceProgram, StackedWeightsFollowEachOther) {
  test::FakeDevice device;
  const Weights host = {{"a", test::random_tensor({2, 3}, 1)},
                        {"b", test::random_tensor({4, 3}, 2)},
                        {"c", test::random_tensor({5}, 3)}};
  const WeightStack stack = {"a", "b"};
  const Weights there = to_device(host, {&stack, 1}, device);
  ASSERT_EQ(there.size(), 3u);
  EXPECT_FALSE(stacked(host, stack));        // not on the host
  EXPECT_FALSE(stacked(there, {"b", "a"}));  // nor in another order
  EXPECT_FALSE(stacked(there, {"a", "absent"}));
  const Tensor both = std::get<Tensor>(*stacked(there, stack));
  ASSERT_EQ(both.shape(), (Shape{6, 3}));
  std::vector<float> values(18), expected = test::floats(std::get<Tensor>(host.at("a")));
  std::memcpy(values.data(), both.address(), 18 * sizeof(float));
  const auto rest = test::floats(std::get<Tensor>(host.at("b")));
  expected.insert(expected.end(), rest.begin(), rest.end());
  EXPECT_EQ(values, expected);
}

// Kernels of convolutions lie with their channels last where the device asks for it, and are read
// so: in both layouts of pictures, forward and back, whether they are there or streamed.
TEST(DeviceProgram, KernelsOfConvolutionsLieWithTheirChannelsLast) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const Kernels* kernels : {&cpu_kernels(), &cpu_scalar_kernels()}) {
      auto graph = std::make_shared<Graph>();
      const Value w = graph->weight("w", {{5, 4, 3, 2}, dtype, {}});
      const Value x = graph->input("x", {{2, 6, 7, 4}, DType::kF32, {}});
      const Value planes = permute(x, {0, 3, 1, 2});
      const ConvAttributes how{1, {1, 0, 1, 1}}, last{1, {1, 0, 1, 1}, true};
      const Value y = conv2d(planes, w, {}, how);
      graph->output("first", y);
      graph->output("last", conv2d(x, w, {}, last));
      graph->output("back", graph->add(Op::kConv2dInputGrad, {y, w}, how, planes.type()));
      const Tensor weight = test::random_tensor({5, 4, 3, 2}, 1, dtype);
      const Weights weights = {{"w", weight}};
      const std::map<std::string, Tensor> inputs = {{"x", test::random_tensor({2, 6, 7, 4}, 2)}};
      const auto expected = Program(graph, weights, cpu_scalar_kernels(), {1}).run(inputs);
      const WeightBlock block{"block", {"w"}};
      for (const bool streamed : {false, true}) {
        test::FakeDevice device;
        device.turns_kernels = true;
        const Weights there = to_device(weights, {}, device, {&block, streamed ? 1u : 0u});
        const Tensor& placed = std::get<Tensor>(there.at("w"));
        EXPECT_TRUE(placed.channels_last());
        EXPECT_EQ(placed.shape(), weight.shape());
        if (dtype == DType::kF32 && !streamed) {  // the second value is the second channel's first
          float second = 0;
          std::memcpy(&second, placed.address() + sizeof(float), sizeof(float));
          EXPECT_EQ(second, weight.as<float>()[3 * 2]);
        }
        Program program(graph, there, *kernels, {1, &device});
        for (const auto& [name, tensor] : program.run(inputs)) {
          EXPECT_LE(test::relative_error(test::floats(tensor), test::floats(expected.at(name))),
                    2e-6)
              << name;
        }
      }
    }
  }
}

TEST(DeviceProgram, WhatConvolutionsDoNotReadIsNotTurned) {
  test::FakeDevice device;
  device.turns_kernels = true;
  const Weights there = to_device({{"matrix", test::random_tensor({4, 3}, 1)},
                                   {"kernel", test::random_tensor({4, 3, 2, 2}, 2)}},
                                  {}, device);
  EXPECT_FALSE(std::get<Tensor>(there.at("matrix")).channels_last());
  auto graph = std::make_shared<Graph>();
  const Value w = graph->weight("kernel", {{4, 3, 2, 2}, DType::kF32, {}});
  graph->output("y", conv2d(graph->input("x", {{1, 3, 4, 4}, DType::kF32, {}}), w, {}, {}));
  graph->output("flat", reshape(w, {4, 12}) + reshape(w, {4, 12}));
  EXPECT_EQ(test::error_of([&] { Program(graph, there, cpu_kernels(), {1, &device}); }),
            "weights: 'kernel' lies as convolutions read it, and something else reads it too");
}

// y = a * x + total, and total becomes y.
std::shared_ptr<Graph> running_total() {
  auto graph = std::make_shared<Graph>();
  const ValueType type{{2, 3}, DType::kF32, {}};
  const Value total = graph->state("total", type);
  const Value y = graph->input("a", type) * graph->input("x", type) + total;
  graph->output("y", y);
  graph->update(total, y);
  return graph;
}

TEST(ProgramState, PersistsAndIsUpdatedAfterEveryRun) {
  test::FakeDevice fake;
  for (DeviceContext* device :
       {static_cast<DeviceContext*>(nullptr), static_cast<DeviceContext*>(&fake)}) {
    for (const bool fused : {false, true}) {
      const auto graph = fused ? fuse(*running_total()) : running_total();
      Program program(graph, {}, {&cpu_kernels(), {1, device}, /*record=*/true});
      EXPECT_EQ(program.memory().states, 24);
      EXPECT_EQ(test::floats(program.state("total")), std::vector<float>(6, 0.0f));
      const Tensor a = test::random_tensor({2, 3}, 1);
      std::vector<float> total(6, 0.0f);
      program.set_input("a", a);
      for (uint64_t seed = 2; seed < 6; ++seed) {
        const Tensor x = test::random_tensor({2, 3}, seed);
        program.set_input("x", x);
        program.run();
        for (size_t i = 0; i < 6; ++i) total[i] = a.as<float>()[i] * x.as<float>()[i] + total[i];
        EXPECT_EQ(test::floats(program.output("y")), total);
        EXPECT_EQ(test::floats(program.state("total")), total);
      }
      program.set_state("total", a);
      EXPECT_EQ(test::floats(program.state("total")), test::floats(a));
    }
  }
}

TEST(ProgramInputs, GoUpOnceAndStayOnTheDevice) {
  test::FakeDevice device;
  Program program(running_total(), {}, {&cpu_kernels(), {1, &device}, /*record=*/true});
  program.set_input("a", test::random_tensor({2, 3}, 1));
  program.set_input("x", test::random_tensor({2, 3}, 2));
  program.run();
  const int uploads = device.uploads;
  // What comes out goes in again without passing through the CPU's memory.
  for (int i = 0; i < 3; ++i) {
    const Tensor y = program.device_output("y");
    EXPECT_EQ(y.device(), device.device());
    program.set_input("x", y);
    program.run();
  }
  EXPECT_EQ(device.uploads, uploads);
  EXPECT_EQ(device.downloads, 0);
}

TEST(ProgramInputs, WrongOnesAreNamed) {
  Program program(running_total(), {}, cpu_kernels(), {1});
  EXPECT_EQ(test::error_of([&] { program.set_input("b", Tensor::zeros(DType::kF32, {2, 3})); }),
            "b: the graph has no such input");
  EXPECT_EQ(test::error_of([&] { program.set_input("a", Tensor::zeros(DType::kF32, {3, 2})); }),
            "a: input is F32 [3, 2] instead of F32 [2, 3]");
  EXPECT_EQ(test::error_of([&] { program.run(); }), "a: input is missing");
  EXPECT_EQ(test::error_of([&] { program.output("z"); }), "z: the graph has no such output");
}

// Two ways to add: a fast one that takes no F64, and the reference behind it.
TEST(Dispatch, TheFirstThatTakesAProblemRunsAndAReferenceInItsPlaceIsNoted) {
  const auto sum = [](DType dtype) {
    auto graph = std::make_shared<Graph>();
    const Value x = graph->input("x", {{2, 3}, dtype, {}});
    graph->output("y", x + x);
    return graph;
  };
  const Program fast(sum(DType::kF32), {}, cpu_kernels(), {1});
  EXPECT_TRUE(fast.notes().empty());
  const bool has_fast = !cpu_kernels().binary.first().reference;
  Program slow(sum(DType::kF64), {}, cpu_kernels(), {1});
  ASSERT_EQ(slow.notes().size(), has_fast ? 1u : 0u);
  if (has_fast) {
    EXPECT_EQ(slow.notes()[0],
              "add: a plain reference stands in for faster kernels, which do not take F64 [2, 3], "
              "F64 [2, 3]");
  }
  const Program reference(sum(DType::kF64), {}, cpu_scalar_kernels(), {1});
  EXPECT_TRUE(reference.notes().empty());  // nothing faster was there
}

TEST(Dispatch, AProblemThatNothingTakesIsAnErrorThatNamesIt) {
  Kernels none = cpu_kernels();
  none.binary = {};
  auto graph = std::make_shared<Graph>();
  const Value x = graph->input("x", {{2, 3}, DType::kF32, {}});
  graph->output("y", x + x);
  Program program(graph, {}, none, {1});
  EXPECT_EQ(test::error_of([&] { program.run({{"x", Tensor::zeros(DType::kF32, {2, 3})}}); }),
            "add: there is no kernel for F32 [2, 3], F32 [2, 3]");
}

}  // namespace
}  // namespace halftone
