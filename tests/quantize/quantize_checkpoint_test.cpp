// Checkpoints of several files: none of their tensors is lost, and what was written can be read.
#include "halftone/quantize/quantize_checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "halftone/io/safetensors_writer.h"
#include "halftone/io/stored_weights.h"
#include "tests/support/errors.h"
#include "tests/support/silent.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tensors.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::UnorderedElementsAre;

class QuantizeCheckpoint : public testing::Test {
 protected:
  // A shard with one weight, and with whatever else is given.
  void write_shard(const std::string& name, const std::string& weight,
                   std::vector<std::pair<std::string, Tensor>> others = {}) {
    fs::create_directories((in_ / name).parent_path());
    others.emplace_back(weight, test::f32_tensor({16, 32}, test::gaussians(weight[0], 16 * 32)));
    write_safetensors(in_ / name, others);
  }
  void write_index(const std::string& weight_map) {
    test::write_file(in_ / "m.safetensors.index.json", R"({"weight_map":)" + weight_map + "}");
  }
  Checkpoint quantize() {
    std::map<std::string, WeightChoice> chosen;
    for (const char* name : {"a.weight", "b.weight"}) chosen[name] = {formats::nvfp4, true, {}};
    const FileQuantizeOptions how{formats::nvfp4, {}, {}, chosen, {}, {}};
    quantize_checkpoint(Checkpoint::open(in_), out_, how, cpu_kernels(), {1}, test::silent);
    return Checkpoint::open(out_);
  }
  static void expect_both(const Checkpoint& checkpoint) {
    std::vector<std::string> names;
    const StoredWeights stored = read_stored_weights(checkpoint);
    for (const auto& [name, weight] : stored.weights) names.push_back(name);
    EXPECT_THAT(names, UnorderedElementsAre("a.weight", "b.weight"));
    EXPECT_TRUE(stored.unexplained.empty());
  }

  test::TempDir dir_;
  fs::path in_ = dir_ / "in", out_ = dir_ / "out";
};

TEST_F(QuantizeCheckpoint, ShardsOfOneNameKeepTheirFolders) {
  write_shard("a/w.safetensors", "a.weight");
  write_shard("b/w.safetensors", "b.weight");
  write_index(R"({"a.weight":"a/w.safetensors","b.weight":"./b/w.safetensors"})");
  const Checkpoint out = quantize();
  ASSERT_EQ(out.files().size(), 2u);
  EXPECT_EQ(out.shard_name(*out.files()[0]), "a/w.safetensors");
  EXPECT_EQ(out.shard_name(*out.files()[1]), "b/w.safetensors");
  expect_both(out);
}

TEST_F(QuantizeCheckpoint, ASingleFileInAFolderIsFoundAgain) {
  write_shard("a/w.safetensors", "a.weight", {{"b.weight", Tensor::zeros(DType::kF32, {16, 32})}});
  write_index(R"({"a.weight":"a/w.safetensors","b.weight":"a/w.safetensors"})");
  expect_both(quantize());
}

TEST_F(QuantizeCheckpoint, ATensorThatLiesInTwoShardsIsNamed) {
  write_shard("m-00001.safetensors", "a.weight");
  write_shard("m-00002.safetensors", "b.weight", {{"a.weight", Tensor::zeros(DType::kF32, {1})}});
  write_index(R"({"a.weight":"m-00001.safetensors","b.weight":"m-00002.safetensors"})");
  EXPECT_THAT(test::error_of([&] { quantize(); }),
              HasSubstr("m-00002.safetensors: tensor 'a.weight' lies in shard "
                        "'m-00001.safetensors' as well"));
  EXPECT_FALSE(fs::exists(out_));
}

TEST_F(QuantizeCheckpoint, ShardsInAnyDialectAreReadAsOne) {
  write_shard("m-00001-of-00003.safetensors", "a.weight");
  write_shard("m-00002-of-00003.safetensors", "b.weight");
  write_shard("m-00003-of-00003.safetensors", "norm");  // nothing to convert
  write_index(R"({"a.weight":"m-00001-of-00003.safetensors",
                  "b.weight":"m-00002-of-00003.safetensors","norm":"m-00003-of-00003.safetensors"})");
  const Checkpoint input = Checkpoint::open(in_);
  for (const Dialect dialect : {Dialect::kHalftone, Dialect::kComfyUI, Dialect::kModelOpt,
                                Dialect::kCompressedTensors, Dialect::kTorchao}) {
    SCOPED_TRACE(to_string(dialect));
    fs::remove_all(out_);
    const QuantizedTensor ours = [&] {
      const Checkpoint written = quantize();
      return load_stored(written, read_stored_weights(written).weights.at("b.weight"));
    }();
    if (dialect != Dialect::kHalftone) convert_checkpoint(input, out_, dialect, test::silent);
    const Checkpoint out = Checkpoint::open(out_);
    expect_both(out);
    EXPECT_TRUE(out.unindexed().empty());
    const auto theirs = load_stored(out, read_stored_weights(out).weights.at("b.weight"));
    EXPECT_EQ(test::bytes_of(theirs.codes), test::bytes_of(ours.codes));
    EXPECT_EQ(test::bytes_of(out.tensor("norm")), test::bytes_of(input.tensor("norm")));
  }
}

}  // namespace
}  // namespace halftone
