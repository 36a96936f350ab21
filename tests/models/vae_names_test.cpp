// AutoencoderKL with the names of the original code: the tensors that diffusers' converter makes
// weights of, and the config that their shapes tell. The fixture is made by
// tools/golden/vae_names.py.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "halftone/io/json.h"
#include "halftone/io/safetensors_writer.h"
#include "halftone/models/autoencoder_kl/names.h"
#include "tests/support/data.h"
#include "tests/support/errors.h"
#include "tests/support/procedural.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tensors.h"

namespace halftone {
namespace {

using nlohmann::json;
using test::error_of;
using testing::HasSubstr;
using NamedTensorList = std::vector<std::pair<std::string, Tensor>>;

class VaeNames : public testing::TestWithParam<const char*> {
 protected:
  VaeNames()
      : case_(read_json_file(test::kData / "autoencoder_kl/original_names.json")[GetParam()]),
        config_(autoencoder_kl::parse_config(case_["config"], "fixture")) {
    for (const auto& [name, shape] : case_["shapes"].items()) {
      tensors_.emplace_back(
          name, test::procedural_weight(name, Shape(shape.get<std::vector<int64_t>>())));
    }
  }
  Checkpoint written(const NamedTensorList& tensors, const std::string& within) const {
    NamedTensorList renamed;
    for (const auto& [name, tensor] : tensors) renamed.emplace_back(within + name, tensor);
    if (!within.empty()) {
      renamed.emplace_back("model.diffusion_model.x", Tensor::zeros(DType::kF32, {1}));
    }
    write_safetensors(dir_ / "vae.safetensors", renamed);
    return Checkpoint::open(dir_ / "vae.safetensors");
  }
  static std::vector<std::shared_ptr<Graph>> graphs(const autoencoder_kl::Config& config) {
    return {autoencoder_kl::build_decoder(config, 1, 1, 1, {}),
            autoencoder_kl::build_encoder(config, 1, 8, 8, {})};
  }

  test::TempDir dir_;
  json case_;
  autoencoder_kl::Config config_;
  NamedTensorList tensors_;
};
INSTANTIATE_TEST_SUITE_P(, VaeNames, testing::Values("plain", "quant_conv"),
                         [](const auto& tested) { return std::string(tested.param); });

TEST_P(VaeNames, AreThoseOfTheOriginalCode) {
  const std::map<std::string, Tensor> by_name(tensors_.begin(), tensors_.end());
  for (const std::string within : {"", "first_stage_model.", "vae."}) {
    const Checkpoint file = written(tensors_, within);
    const Weights weights =
        load_weights(file, graphs(config_), autoencoder_kl::names_in(file, within));
    EXPECT_EQ(weights.size(), case_["names"].size());
    for (const auto& [name, original] : case_["names"].items()) {
      const Tensor& loaded = std::get<Tensor>(weights.at(name));
      const Tensor& stored = by_name.at(original.get<std::string>());
      EXPECT_EQ(test::bytes_of(loaded), test::bytes_of(stored)) << name;
    }
  }
}

// What lies under diffusers' own names within a file is found as well.
TEST_P(VaeNames, DiffusersNamesMayStandInAFile) {
  NamedTensorList tensors;
  for (const auto& graph : graphs(config_)) {
    for (const auto& [name, weight] : test::procedural_weights(*graph)) {
      tensors.emplace_back(name, std::get<Tensor>(weight));
    }
  }
  const Checkpoint file = written(tensors, "vae.");
  const auto names = autoencoder_kl::names_in(file, "vae.");
  EXPECT_EQ(load_weights(file, graphs(config_), names).size(), tensors.size());
}

TEST_P(VaeNames, ConfigIsToldByShapes) {
  const Checkpoint file = written(tensors_, "vae.");
  autoencoder_kl::Config usual;
  usual.scaling_factor = 2;
  usual.shift_factor = 0.25f;
  const auto told = autoencoder_kl::infer_config(file, "vae.", usual);
  EXPECT_EQ(told.channels, config_.channels);
  EXPECT_EQ(told.latent_channels, config_.latent_channels);
  EXPECT_EQ(told.layers_per_block, config_.layers_per_block);
  EXPECT_EQ(told.groups, config_.groups);
  EXPECT_EQ(told.mid_attention, config_.mid_attention);
  EXPECT_EQ(told.quant_conv, config_.quant_conv);
  EXPECT_EQ(told.post_quant_conv, config_.post_quant_conv);
  EXPECT_EQ(told.scaling_factor, 2);
  EXPECT_EQ(told.shift_factor, 0.25f);
}

TEST_P(VaeNames, WhatDoesNotFitIsNamedAsTheFileHasIt) {
  const auto error = [&](const std::string& name, const Shape& shape) {
    NamedTensorList tensors = tensors_;
    for (auto& [own, tensor] : tensors) {
      if (own == name) tensor = Tensor::zeros(DType::kBF16, shape);
    }
    const Checkpoint file = written(tensors, "vae.");
    return error_of(
        [&] { load_weights(file, graphs(config_), autoencoder_kl::names_in(file, "vae.")); });
  };
  const std::string kernel = "decoder.mid.attn_1.q.weight";
  EXPECT_THAT(error(kernel, {64, 64}), HasSubstr("'vae." + kernel + "' is BF16 [64, 64] instead"));
  EXPECT_THAT(error(kernel, {64, 64, 3, 3}), HasSubstr("instead of [64, 64, 1, 1]"));
  NamedTensorList more = tensors_;
  more.emplace_back("decoder.up.3.block.0.norm2.weight", Tensor::zeros(DType::kBF16, {32}));
  const Checkpoint file = written(more, "vae.");
  EXPECT_THAT(error_of([&] {
                load_weights(file, graphs(config_), autoencoder_kl::names_in(file, "vae."));
              }),
              HasSubstr("1 unexpected: 'vae.decoder.up.3.block.0.norm2.weight'"));
}

}  // namespace
}  // namespace halftone
