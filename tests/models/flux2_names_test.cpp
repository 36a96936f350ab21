// What can be told of FLUX.2's transformer from a file's tensors alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "halftone/io/safetensors_writer.h"
#include "halftone/models/flux2/names.h"
#include "tests/support/errors.h"
#include "tests/support/temp_dir.h"

namespace halftone::flux2 {
namespace {

using test::error_of;
using testing::HasSubstr;

using Tensors = std::vector<std::pair<std::string, Tensor>>;

// Zeros in the shapes of a config, with the names of single files.
Tensors zeros_of(const TransformerConfig& c) {
  Tensors tensors;
  const auto add = [&](const std::string& name, const Shape& shape) {
    tensors.emplace_back(name, Tensor::zeros(DType::kBF16, shape));
  };
  add("img_in.weight", {c.dim(), c.in_channels});
  add("txt_in.weight", {c.dim(), c.joint_dim});
  add("time_in.in_layer.weight", {c.dim(), c.time_channels});
  add("single_stream_modulation.lin.weight", {3 * c.dim(), c.dim()});
  for (int64_t i = 0; i < c.layers; ++i) {
    const std::string block = fmt::format("double_blocks.{}.", i);
    add(block + "img_attn.norm.query_norm.scale", {c.head_dim});
    add(block + "img_mlp.0.weight", {2 * c.hidden(), c.dim()});
  }
  for (int64_t i = 0; i < c.single_layers; ++i) {
    add(fmt::format("single_blocks.{}.norm.query_norm.scale", i), {c.head_dim});
  }
  return tensors;
}

class Flux2Inference : public testing::Test {
 protected:
  TransformerConfig infer(const Tensors& tensors) const {
    write_safetensors(dir_ / "t.safetensors", tensors);
    const Checkpoint file = Checkpoint::open(dir_ / "t.safetensors");
    return infer_transformer_config(file, names_in(file));
  }
  std::string error(const Tensors& tensors) const {
    return error_of([&] { infer(tensors); });
  }
  test::TempDir dir_;
};

TEST_F(Flux2Inference, ShapesTellTheConfig) {
  TransformerConfig c;
  c.heads = 2;
  c.layers = 3;
  c.single_layers = 4;
  c.joint_dim = 96;
  c.in_channels = 64;
  c.time_channels = 32;
  c.mlp_ratio = 2;
  const TransformerConfig told = infer(zeros_of(c));
  EXPECT_EQ(told.heads, 2);
  EXPECT_EQ(told.head_dim, 128);
  EXPECT_EQ(told.layers, 3);
  EXPECT_EQ(told.single_layers, 4);
  EXPECT_EQ(told.joint_dim, 96);
  EXPECT_EQ(told.in_channels, 64);
  EXPECT_EQ(told.time_channels, 32);
  EXPECT_EQ(told.hidden(), 512);
}

TEST_F(Flux2Inference, WhatCannotBeToldOrIsNotSupportedIsNamed) {
  TransformerConfig c;
  c.heads = 1;
  c.layers = c.single_layers = 1;
  c.joint_dim = 8;
  EXPECT_EQ(error(zeros_of(c)), "(no error)");
  TransformerConfig narrow = c;
  narrow.head_dim = 64;
  EXPECT_THAT(error(zeros_of(narrow)), HasSubstr("heads of 64 need a transformer/config.json"));
  Tensors guided = zeros_of(c);
  guided.emplace_back("guidance_in.in_layer.weight", Tensor::zeros(DType::kBF16, {128, 256}));
  EXPECT_THAT(error(guided), HasSubstr("'guidance_embeds' is true, and only false is supported"));
  Tensors without = zeros_of(c);
  std::erase_if(without, [](const auto& item) { return item.first == "txt_in.weight"; });
  EXPECT_THAT(error(without),
              HasSubstr("is no FLUX.2 transformer: there is no tensor 'txt_in.weight' of rank 2"));
}

}  // namespace
}  // namespace halftone::flux2
