// Single files that hold a whole model: the same bits as the folder that they were made of, what
// their tensors tell where nothing else does, and what is said when a part is nowhere.
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <nlohmann/json.hpp>

#include "halftone/io/json.h"
#include "halftone/io/safetensors_writer.h"
#include "halftone/numerics/minifloat.h"
#include "halftone/tensor/float_values.h"
#include "tests/support/data.h"
#include "tests/support/errors.h"
#include "tests/support/load_pipeline.h"
#include "tests/support/run_graph.h"
#include "tests/support/silent.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tested_options.h"
#include "tests/support/tiny_folder.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::error_of;
using test::floats;
using testing::AnyOf;
using testing::HasSubstr;
using Tensors = std::vector<std::pair<std::string, Tensor>>;

struct WholeFamily {
  const char* name;
  const char* fixture;                          // whose configs the tiny model has
  std::map<std::string, std::string> encoders;  // folder -> what it is called in files
  std::vector<std::string> tokenizers;
  const char* told;  // changes by which shapes tell the configs: heads as wide as published ones
};
const WholeFamily kFamilies[] = {
    {"flux1",
     "flux1/pipeline_dev.safetensors",
     {{"text_encoder", "clip_l"}, {"text_encoder_2", "t5xxl"}},
     {"tokenizer", "tokenizer_2"},
     R"({"text_encoder/config.json": {"hidden_size": 64, "num_attention_heads": 1,
                                      "projection_dim": 64},
         "transformer/config.json": {"attention_head_dim": 128, "num_attention_heads": 1,
                                     "axes_dims_rope": [16, 56, 56], "pooled_projection_dim": 64},
         "vae/config.json": {"block_out_channels": [32, 64], "norm_num_groups": 32}})"},
    {"sd3",
     "sd3/pipeline_large.safetensors",
     {{"text_encoder", "clip_l"}, {"text_encoder_2", "clip_g"}, {"text_encoder_3", "t5xxl"}},
     {"tokenizer", "tokenizer_2", "tokenizer_3"},
     R"({"text_encoder/config.json": {"hidden_size": 64, "num_attention_heads": 1,
                                      "projection_dim": 64},
         "text_encoder_2/config.json": {"hidden_size": 64, "num_attention_heads": 1,
                                        "projection_dim": 48},
         "text_encoder_3/config.json": {"d_model": 128},
         "transformer/config.json": {"joint_attention_dim": 128, "pooled_projection_dim": 112},
         "vae/config.json": {"block_out_channels": [32, 64], "norm_num_groups": 32,
                             "scaling_factor": 1.5305, "shift_factor": 0.0609}})"}};

fs::path weights_file(const fs::path& folder) {
  for (const char* name : {"model.safetensors", "diffusion_pytorch_model.safetensors"}) {
    if (fs::exists(folder / name)) return folder / name;
  }
  return {};
}

Tensors tensors_of(const fs::path& folder) {
  const SafetensorsFile file(weights_file(folder));
  Tensors tensors;
  for (const TensorEntry& entry : file.tensors()) {
    const Tensor view = file.tensor(entry);
    Tensor copy = Tensor::empty(entry.dtype, entry.shape);
    std::ranges::copy(view.bytes(), copy.mutable_bytes().begin());
    tensors.emplace_back(entry.name, copy);
  }
  return tensors;
}

// Of values with eight bits; those below its normal numbers are 0.
fp16 half_of(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000u);
  const uint32_t exponent = bits >> 23 & 0xFFu;
  if (exponent < 113) return {sign};
  return {static_cast<uint16_t>(sign | ((exponent - 112) << 10) | (bits >> 13 & 0x3FFu))};
}

Tensor in_dtype(const Tensor& x, DType dtype) {
  const std::vector<float> values = float_values(x);
  Tensor y = Tensor::empty(dtype, x.shape());
  for (size_t i = 0; i < values.size(); ++i) {
    if (dtype == DType::kF32) y.mutable_as<float>()[i] = values[i];
    if (dtype == DType::kF16) y.mutable_as<fp16>()[i] = half_of(values[i]);
    if (dtype == DType::kBF16) y.mutable_as<bf16>()[i] = to_bf16(values[i]);
  }
  return y;
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

// Of an autoencoder with two levels, as tests/models/vae_names_test.cpp holds them to diffusers'.
std::pair<std::string, Tensor> original_vae(std::string name, Tensor tensor) {
  name = replaced(name, "down_blocks.", "down.");
  name = replaced(name, "up_blocks.0.", "up.1.");
  name = replaced(name, "up_blocks.1.", "up.0.");
  for (const auto& [from, to] : std::initializer_list<std::pair<const char*, const char*>>{
           {"mid_block.resnets.0.", "mid.block_1."},
           {"mid_block.resnets.1.", "mid.block_2."},
           {"mid_block.attentions.0.group_norm.", "mid.attn_1.norm."},
           {"mid_block.attentions.0.to_out.0.", "mid.attn_1.proj_out."},
           {"mid_block.attentions.0.to_", "mid.attn_1."},
           {"resnets.", "block."},
           {"downsamplers.0.", "downsample."},
           {"upsamplers.0.", "upsample."},
           {"conv_norm_out.", "norm_out."},
           {"conv_shortcut.", "nin_shortcut."}}) {
    name = replaced(name, from, to);
  }
  const Shape& s = tensor.shape();
  const bool kernel = name.find(".attn_1.") != std::string::npos && s.rank() == 2;
  return {name, kernel ? tensor.reshape({s[0], s[1], 1, 1}) : tensor};
}

class WholeFile : public testing::TestWithParam<WholeFamily> {
 protected:
  // The folder that a file is made of; with `told`, one whose configs shapes tell.
  void make_folder(bool told, DType dtype = DType::kBF16, const json& of_transformer = {}) {
    json description = parse_json(
        SafetensorsFile(test::kData / GetParam().fixture).metadata().at("case"), "fixture");
    if (told) description["files"].merge_patch(json::parse(GetParam().told));
    if (!of_transformer.empty()) {
      description["files"]["transformer/config.json"].update(of_transformer);
    }
    test::write_tiny_folder(folder_, description);
    for (const auto& entry : fs::directory_iterator(folder_)) {
      if (weights_file(entry.path()).empty()) continue;
      Tensors tensors = tensors_of(entry.path());
      for (auto& [name, tensor] : tensors) {
        tensor = in_dtype(tensor, dtype);
        // Files are of code that takes this vector as it is; so, then, has the folder.
        const bool first = entry.path().filename() == "text_encoder";
        if (!first || name != "text_projection.weight") continue;
        Tensor one = Tensor::zeros(DType::kF32, tensor.shape());
        for (int64_t i = 0; i < one.shape()[0]; ++i) {
          one.mutable_as<float>()[i * one.shape()[1] + i] = 1;
        }
        tensor = in_dtype(one, dtype);
      }
      write_safetensors(weights_file(entry.path()), tensors);
    }
  }
  // The same model as one file.
  Tensors whole(const std::string& vae = "first_stage_model.") const {
    Tensors all;
    for (const auto& [name, tensor] : tensors_of(folder_ / "transformer")) {
      all.emplace_back("model.diffusion_model." + name, tensor);
    }
    for (const auto& [folder, called] : GetParam().encoders) {
      for (const auto& [name, tensor] : tensors_of(folder_ / folder)) {
        all.emplace_back("text_encoders." + called + ".transformer." + name, tensor);
      }
      all.emplace_back("text_encoders." + called + ".logit_scale", Tensor::zeros(DType::kF32, {1}));
    }
    for (const auto& [name, tensor] : tensors_of(folder_ / "vae")) {
      auto [original, stored] = original_vae(name, tensor);
      all.emplace_back(vae + original, stored);
    }
    return all;
  }
  void write(const Tensors& tensors) const { write_safetensors(file_, tensors); }

  // What is beside the file: the folder's tokenizers, and its configs where they are wanted.
  void make_base(bool configs) const {
    fs::remove_all(base_);
    for (const auto& entry : fs::recursive_directory_iterator(folder_)) {
      const fs::path name = fs::relative(entry.path(), folder_);
      const bool tokenizer = name.string().starts_with("tokenizer");
      if (entry.is_directory() || entry.path().extension() == ".safetensors") continue;
      if (!tokenizer && !configs) continue;
      fs::create_directories((base_ / name).parent_path());
      fs::copy_file(entry.path(), base_ / name);
    }
  }

  GenerateResult run(const fs::path& base, const fs::path& file = {}) const {
    const auto pipeline = test::load_pipeline(base, test::tested_options(), file);
    GenerateRequest r;
    r.prompt = "two dogs";
    r.width = 32;
    r.height = 16;
    r.steps = 2;
    r.guidance = 3;
    r.seed = 7;
    return generate(*pipeline, r, test::silent);
  }
  void expect_same_as_folder() const {
    const GenerateResult expected = run(folder_), found = run(base_, file_);
    EXPECT_EQ(floats(found.latents), floats(expected.latents));
    EXPECT_EQ(floats(found.images[0]), floats(expected.images[0]));
  }
  std::string error() const {
    return error_of([&] { run(base_, file_); });
  }
  // Without tensors that begin like this.
  static Tensors without(Tensors tensors, const std::string& start) {
    std::erase_if(tensors, [&](const auto& item) { return item.first.starts_with(start); });
    return tensors;
  }

  test::TempDir dir_;
  fs::path folder_ = dir_ / "folder", base_ = dir_ / "base", file_ = dir_ / "whole.safetensors";
};
INSTANTIATE_TEST_SUITE_P(, WholeFile, testing::ValuesIn(kFamilies),
                         [](const auto& tested) { return std::string(tested.param.name); });

TEST_P(WholeFile, GivesTheSameBitsAsTheFolder) {
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    make_folder(false, dtype);
    write(whole(dtype == DType::kF16 ? "vae." : "first_stage_model."));
    make_base(/*configs=*/true);
    expect_same_as_folder();
  }
}

// Tools write T5 in 8 bits without scales: what these numbers say is computed with.
TEST_P(WholeFile, EncodersMayBeInEightBits) {
  make_folder(true);
  make_base(/*configs=*/false);
  const fs::path encoder = folder_ / GetParam().encoders.rbegin()->first;
  Tensors rounded = tensors_of(encoder), all = whole();
  for (auto& [name, tensor] : rounded) {
    const std::vector<float> values = float_values(tensor);
    Tensor codes = Tensor::empty(DType::kF8E4M3, tensor.shape());
    for (size_t i = 0; i < values.size(); ++i) {
      codes.mutable_as<uint8_t>()[i] = encode<E4M3>(values[i]);
      tensor.mutable_as<bf16>()[i] = to_bf16(decode<E4M3>(codes.as<uint8_t>()[i]));
    }
    for (auto& [stored, eight_bits] : all) {
      if (stored == "text_encoders.t5xxl.transformer." + name) eight_bits = codes;
    }
  }
  const auto before = floats(run(folder_).latents);
  write_safetensors(weights_file(encoder), rounded);
  write(all);
  const auto expected = floats(run(folder_).latents);
  EXPECT_NE(expected, before);
  EXPECT_LE(test::relative_error(floats(run(base_, file_).latents), expected), 1e-6);
}

TEST_P(WholeFile, TellsItsConfigsWhereThereAreNone) {
  make_folder(true);
  write(whole());
  make_base(/*configs=*/false);
  expect_same_as_folder();
  const ModelParts of_folder = ModelParts::read(find_model(folder_));
  const ModelParts of_file = ModelParts::read(find_model(file_, base_));
  EXPECT_EQ(of_file.sampling.steps, of_folder.sampling.steps);
  EXPECT_EQ(of_file.sampling.guidance, of_folder.sampling.guidance);
  EXPECT_EQ(of_file.sampling.embedded_guidance, of_folder.sampling.embedded_guidance);
  for (const int64_t tokens : {64, 4096}) {
    const auto levels = [&](const ModelParts& parts) {
      std::vector<double> sigmas;
      for (const SamplerStep& s : make_schedule(parts.sampling.scheduler, 5, tokens).steps) {
        sigmas.push_back(s.sigma);
      }
      return sigmas;
    };
    EXPECT_EQ(levels(of_file), levels(of_folder));
  }
}

// Weights that the base has are taken before those of the file.
TEST_P(WholeFile, PartsOfTheBaseComeFirst) {
  make_folder(false);
  Tensors damaged = whole();
  for (auto& [name, tensor] : damaged) {
    if (!name.starts_with("model.")) tensor = Tensor::zeros(tensor.dtype(), {1});
  }
  write(damaged);
  fs::remove_all(base_);
  fs::copy(folder_, base_, fs::copy_options::recursive);
  fs::remove_all(base_ / "transformer");
  // The denoiser's config is told by no shapes where its heads are narrow.
  fs::create_directories(base_ / "transformer");
  fs::copy_file(folder_ / "transformer/config.json", base_ / "transformer/config.json");
  expect_same_as_folder();
  EXPECT_TRUE(find_model(file_, base_).files.in_file.empty());
}

TEST_P(WholeFile, WhatIsNowhereIsNamedWithBothPlaces) {
  make_folder(true);
  make_base(/*configs=*/false);
  const Tensors all = whole();
  write(without(all, "first_stage_model."));
  EXPECT_EQ(error(), base_.string() + ": there is no vae: neither in '" + (base_ / "vae").string() +
                         "' nor in '" + file_.string() +
                         "', whose tensors would begin with vae. or first_stage_model.");
  write(without(all, "text_encoders.clip_l.transformer."));
  EXPECT_THAT(error(), HasSubstr("there is no text_encoder: neither in '"));

  write(all);
  const std::string needed = error_of([&] { find_model(file_); });
  EXPECT_THAT(needed, HasSubstr("holds a whole "));
  EXPECT_THAT(needed, HasSubstr("but its tokenizers; give a folder that has " +
                                fmt::format("{}", fmt::join(GetParam().tokenizers, ", "))));
  write(without(all, "first_stage_model."));
  EXPECT_THAT(error_of([&] { find_model(file_); }), HasSubstr("is needed with a single file"));
  EXPECT_THAT(error_of([&] { find_model(file_, dir_ / "none"); }), HasSubstr("no such folder"));

  write(all);
  const std::string last = GetParam().tokenizers.back();
  fs::remove_all(base_ / last);
  EXPECT_THAT(error(), HasSubstr("has no " + last + ", which the text_encoder"));
}

TEST_P(WholeFile, StrayTensorsAreNamedWhereverTheyAre) {
  make_folder(true);
  make_base(/*configs=*/false);
  const Tensors all = whole();
  for (const std::string stray :
       {"stray", "model.diffusion_model.stray", "first_stage_model.stray",
        "text_encoders.clip_l.transformer.stray", "text_encoders.t5xxl.transformer.stray"}) {
    Tensors more = all;
    more.emplace_back(stray, Tensor::zeros(DType::kF32, {1}));
    write(more);
    EXPECT_THAT(error(), HasSubstr("1 unexpected: '" + stray + "'"));
  }
  // An encoder under another name is not left out without a word.
  Tensors more = all;
  more.emplace_back("text_encoders.t5xx.transformer.stray", Tensor::zeros(DType::kF32, {1}));
  write(more);
  EXPECT_THAT(error(), HasSubstr("'text_encoders.t5xx.transformer.stray' is of no encoder of"));
}

// One tensor at a time of another shape: an Error, and no crash.
TEST_P(WholeFile, HostileShapesAreErrors) {
  make_folder(true);
  make_base(/*configs=*/false);
  const Tensors all = whole();
  size_t turn = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    const std::string& name = all[i].first;
    const bool tells = name.ends_with("embedding.weight") || name.ends_with("shared.weight") ||
                       name.ends_with("conv_in.weight") || name.ends_with(".fc1.weight") ||
                       name.ends_with("attention_bias.weight") || name.ends_with("q.weight") ||
                       name.ends_with("text_projection.weight") ||
                       name.ends_with("down.0.block.0.conv1.weight");
    if (!tells || name.starts_with("model.")) continue;
    const bool unread = name == "text_encoders.clip_l.transformer.text_projection.weight";
    if (unread) continue;
    for (const Shape& shape : {Shape{}, Shape{0}, Shape{0, 4}, Shape{4, 0}, Shape{3, 5},
                               Shape{1, 0, 1, 1}, Shape{5, 1, 1, 1}}) {
      if (++turn % 3 != 0) continue;
      Tensors tensors = all;
      tensors[i].second = Tensor::zeros(DType::kBF16, shape);
      write(tensors);
      // Of the file, or of what it would have to fit to.
      EXPECT_THAT(error(), AnyOf(HasSubstr("whole.safetensors"), HasSubstr("not fit: ")))
          << name << fmt::format(" {}", shape);
    }
  }
  EXPECT_GT(turn, 30u);
}

class WholeSd3File : public WholeFile {};
INSTANTIATE_TEST_SUITE_P(, WholeSd3File, testing::Values(kFamilies[1]),
                         [](const auto& tested) { return std::string(tested.param.name); });

TEST_P(WholeSd3File, GoesWithoutT5WhereItIsNowhere) {
  make_folder(true);
  make_base(/*configs=*/false);
  const Tensors all = whole();
  write(all);
  const auto with = floats(run(base_, file_).latents);
  write(without(all, "text_encoders.t5xxl."));
  fs::remove_all(base_ / "tokenizer_3");
  fs::rename(folder_ / "text_encoder_3", dir_ / "aside");
  expect_same_as_folder();
  EXPECT_NE(floats(run(base_, file_).latents), with);

  // A base that says it does without is taken at its word, whatever the file holds.
  write(all);
  write_file(base_ / "model_index.json",
             R"({"_class_name": "StableDiffusion3Pipeline", "text_encoder_3": [null, null]})");
  expect_same_as_folder();
}

// The first version has no norms of heads, and Medium alone has dual layers.
TEST_P(WholeSd3File, TellsTheVersionsApart) {
  const auto sampling = [&](const char* change) {
    fs::remove_all(folder_);
    make_folder(true, DType::kBF16, json::parse(change));
    make_base(/*configs=*/false);
    write(whole());
    return ModelParts::read(find_model(file_, base_)).sampling;
  };
  EXPECT_EQ(sampling("{}").guidance, 5.0f);
  EXPECT_EQ(sampling(R"({"dual_attention_layers": []})").guidance, 4.5f);
  const char* first = R"({"dual_attention_layers": [], "qk_norm": null, "attention_head_dim": 64,
      "num_attention_heads": 1, "caption_projection_dim": 64})";
  EXPECT_EQ(sampling(first).guidance, 7.0f);
}

// What the file holds for the first encoder's projection is not used, as in diffusers.
TEST_P(WholeSd3File, TakesTheFirstVectorAsItIs) {
  make_folder(true);
  make_base(/*configs=*/false);
  const std::string projection = "text_encoders.clip_l.transformer.text_projection.weight";
  Tensors all = whole();
  write(without(all, projection));
  expect_same_as_folder();
  for (auto& [name, tensor] : all) {
    if (name == projection) tensor = Tensor::zeros(tensor.dtype(), tensor.shape());
  }
  write(all);
  expect_same_as_folder();
}

}  // namespace
}  // namespace halftone
