// Weights that files keep as rows of something larger, or in another order: unequal parts, halves
// that are swapped, biases like weights, and adapters of all of them.
#include "halftone/models/stored_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "halftone/graph/ops.h"
#include "halftone/io/safetensors_writer.h"
#include "halftone/models/lora.h"
#include "halftone/models/weights.h"
#include "tests/support/errors.h"
#include "tests/support/run_graph.h"
#include "tests/support/temp_dir.h"

namespace halftone {
namespace {

using test::error_of;
using test::floats;
using testing::HasSubstr;

// One linear of 2 rows and one of 4, that files hold as a tensor of 6: the first third, then the
// rest, whose halves are swapped.
const StoredRows kFirst{0, 3, 1, false}, kRest{1, 3, 2, true};

std::shared_ptr<Graph> two_linears(int64_t rest = 4) {
  auto graph = std::make_shared<Graph>();
  const auto weight = [&](const char* name, const Shape& shape) {
    return graph->weight(name, {shape, DType::kF32, {}});
  };
  const Value x = graph->input("x", {{1, 3}, DType::kF32, {}});
  graph->output("first", linear(x, weight("first.weight", {2, 3}), weight("first.bias", {2})));
  graph->output("rest", linear(x, weight("rest.weight", {rest, 3}), weight("rest.bias", {rest})));
  return graph;
}

// Row r holds 10 r, 10 r + 1, ...
Tensor numbered(int64_t rows, int64_t columns) {
  Tensor t = Tensor::empty(DType::kF32, columns == 0 ? Shape{rows} : Shape{rows, columns});
  for (int64_t i = 0; i < t.numel(); ++i) {
    const int64_t width = std::max<int64_t>(columns, 1);
    t.mutable_as<float>()[i] = static_cast<float>(10 * (i / width) + i % width);
  }
  return t;
}
std::vector<float> numbered_rows(std::initializer_list<int> rows, int columns) {
  std::vector<float> values;
  for (const int r : rows) {
    for (int c = 0; c < columns; ++c) values.push_back(static_cast<float>(10 * r + c));
  }
  return values;
}

class StoredRowsTest : public testing::Test {
 protected:
  Weights load(const std::shared_ptr<Graph>& graph) {
    write_safetensors(dir_ / "w.safetensors",
                      {{"both.weight", numbered(6, 3)}, {"both.bias", numbered(6, 0)}});
    file_.emplace(Checkpoint::open(dir_ / "w.safetensors"));
    WeightNames names;
    names.stored_as = [](const std::string& name) {
      const bool first = name.starts_with("first.");
      return StoredAs{"both" + name.substr(name.find('.')), first ? kFirst : kRest};
    };
    return load_weights(*file_, {&graph, 1}, names);
  }
  test::TempDir dir_;
  std::optional<Checkpoint> file_;
};

TEST_F(StoredRowsTest, WeightsAndBiasesAreTheRowsThatTheyShouldBe) {
  const Weights weights = load(two_linears());
  const auto values = [&](const char* name) { return floats(std::get<Tensor>(weights.at(name))); };
  EXPECT_EQ(values("first.weight"), numbered_rows({0, 1}, 3));
  EXPECT_EQ(values("first.bias"), numbered_rows({0, 1}, 1));
  EXPECT_EQ(values("rest.weight"), numbered_rows({4, 5, 2, 3}, 3));
  EXPECT_EQ(values("rest.bias"), numbered_rows({4, 5, 2, 3}, 1));
  // Rows that lie together are read in place.
  EXPECT_TRUE(std::get<Tensor>(weights.at("first.weight")).mapped());
  EXPECT_FALSE(std::get<Tensor>(weights.at("rest.weight")).mapped());
}

TEST_F(StoredRowsTest, RowsThatCannotBeCutSoAreNamed) {
  EXPECT_THAT(error_of([&] { load(two_linears(8)); }),
              HasSubstr("'both.weight' is F32 [6, 3] instead of [12, 3]"));
  EXPECT_THAT(error_of([&] { load(two_linears(3)); }),
              HasSubstr("'both.weight' cannot hold 3 rows"));
}

TEST_F(StoredRowsTest, AdaptersAreCutLikeWeights) {
  const LoraTargets targets = {
      {"both", {{"first.weight", {2, 3}, kFirst}, {"rest.weight", {4, 3}, kRest}}}};
  const auto load_lora = [&](int64_t rows) {
    write_safetensors(dir_ / "lora.safetensors", {{"both.lora_A.weight", numbered(2, 3)},
                                                  {"both.lora_B.weight", numbered(rows, 2)}});
    return LoraAdapter::load(dir_ / "lora.safetensors", targets);
  };
  const LoraAdapter adapter = load_lora(6);
  EXPECT_EQ(floats(adapter.modules().at("first.weight").up), numbered_rows({0, 1}, 2));
  EXPECT_EQ(floats(adapter.modules().at("rest.weight").up), numbered_rows({4, 5, 2, 3}, 2));
  EXPECT_EQ(floats(adapter.modules().at("rest.weight").down), numbered_rows({0, 1}, 3));
  EXPECT_THAT(error_of([&] { load_lora(4); }),
              HasSubstr("tensor 'both.lora_B.weight' is [4, 2] instead of [6, 2]"));
}

}  // namespace
}  // namespace halftone
