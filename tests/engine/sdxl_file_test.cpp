// SDXL as one file, as other tools write it: both encoders under the conditioner's names, the
// second in OpenCLIP's; and what a folder and a file say about prediction and sizes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "halftone/engine/checks.h"
#include "halftone/io/json.h"
#include "halftone/io/safetensors_file.h"
#include "halftone/io/safetensors_writer.h"
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
using test::error_of;
using test::floats;
using testing::HasSubstr;

using SdxlTensors = std::map<std::string, Tensor>;

class SdxlFile : public testing::Test {
 protected:
  SdxlFile() {
    test::write_tiny_folder(
        folder_,
        parse_json(
            SafetensorsFile(test::kData / "sdxl/pipeline_base.safetensors").metadata().at("case"),
            "fixture"));
    fs::copy(folder_, base_, fs::copy_options::recursive);
    for (const char* part : {"text_encoder", "text_encoder_2", "unet", "vae"}) {
      fs::remove(weights_of(base_ / part));
    }
  }

  static fs::path weights_of(const fs::path& folder) {
    const fs::path encoder = folder / "model.safetensors";
    return fs::exists(encoder) ? encoder : folder / "diffusion_pytorch_model.safetensors";
  }
  SdxlTensors tensors_of(const char* part) {
    files_.push_back(std::make_unique<SafetensorsFile>(weights_of(folder_ / part)));
    SdxlTensors tensors;
    for (const TensorEntry& entry : files_.back()->tensors()) {
      tensors[entry.name] = files_.back()->tensor(entry);
    }
    return tensors;
  }

  static Tensor joined(std::initializer_list<Tensor> parts) {
    const Tensor& first = *parts.begin();
    std::vector<int64_t> dims(first.shape().dims().begin(), first.shape().dims().end());
    dims[0] *= static_cast<int64_t>(parts.size());
    Tensor all = Tensor::empty(first.dtype(), Shape(dims));
    auto to = all.mutable_bytes().begin();
    for (const Tensor& part : parts) to = std::copy(part.bytes().begin(), part.bytes().end(), to);
    return all;
  }
  static Tensor transposed(const Tensor& x) {
    const int64_t rows = x.shape()[0], columns = x.shape()[1];
    const auto from = floats(x);
    Tensor y = Tensor::empty(DType::kF32, {columns, rows});
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < columns; ++c) {
        y.mutable_as<float>()[c * rows + r] = from[static_cast<size_t>(r * columns + c)];
      }
    }
    return y;
  }

  // As OpenCLIP has it.
  static void add_open_clip(const SdxlTensors& from, const std::string& prefix, SdxlTensors& to) {
    const std::string model = "text_model.", layers = model + "encoder.layers.";
    to[prefix + "token_embedding.weight"] = from.at(model + "embeddings.token_embedding.weight");
    to[prefix + "positional_embedding"] = from.at(model + "embeddings.position_embedding.weight");
    to[prefix + "text_projection"] = transposed(from.at("text_projection.weight"));
    to[prefix + "logit_scale"] = Tensor::zeros(DType::kF32, {1});
    for (const char* parameter : {"weight", "bias"}) {
      const std::string p = parameter;
      to[prefix + "ln_final." + p] = from.at(model + "final_layer_norm." + p);
      for (int i = 0; from.contains(layers + std::to_string(i) + ".mlp.fc1.bias"); ++i) {
        const std::string ours = layers + std::to_string(i) + ".";
        const std::string block = prefix + "transformer.resblocks." + std::to_string(i) + ".";
        to[block + "ln_1." + p] = from.at(ours + "layer_norm1." + p);
        to[block + "ln_2." + p] = from.at(ours + "layer_norm2." + p);
        to[block + "mlp.c_fc." + p] = from.at(ours + "mlp.fc1." + p);
        to[block + "mlp.c_proj." + p] = from.at(ours + "mlp.fc2." + p);
        to[block + "attn.out_proj." + p] = from.at(ours + "self_attn.out_proj." + p);
        to[block + "attn.in_proj_" + p] = joined({from.at(ours + "self_attn.q_proj." + p),
                                                  from.at(ours + "self_attn.k_proj." + p),
                                                  from.at(ours + "self_attn.v_proj." + p)});
      }
    }
  }
  SdxlTensors whole() {
    SdxlTensors all;
    for (const auto& [name, tensor] : tensors_of("unet")) {
      all["model.diffusion_model." + name] = tensor;
    }
    for (const auto& [name, tensor] : tensors_of("text_encoder")) {
      all["conditioner.embedders.0.transformer." + name] = tensor;
    }
    // A layer that nothing reads, and what the other layers are counted by.
    all["conditioner.embedders.0.transformer.text_model.embeddings.position_ids"] =
        Tensor::zeros(DType::kF32, {1, 77});
    for (const auto& [name, tensor] : tensors_of("vae")) all["first_stage_model." + name] = tensor;
    add_open_clip(tensors_of("text_encoder_2"), "conditioner.embedders.1.model.", all);
    return all;
  }
  void write(const SdxlTensors& tensors) const {
    write_safetensors(file_, {tensors.begin(), tensors.end()});
  }

  std::unique_ptr<Pipeline> load_file() const {
    return test::load_pipeline(base_, test::tested_options(), file_);
  }
  static GenerateResult run(Pipeline& pipeline) {
    GenerateRequest r;
    r.prompt = "two dogs";
    r.width = 16;
    r.height = 24;
    r.steps = 2;
    r.guidance = 5;
    r.seed = 7;
    return generate(pipeline, r, test::silent);
  }

  test::TempDir dir_;
  fs::path folder_ = dir_ / "folder", base_ = dir_ / "base", file_ = dir_ / "whole.safetensors";
  std::vector<std::unique_ptr<SafetensorsFile>> files_;  // tensors are views of them
};

TEST_F(SdxlFile, GivesTheSameBitsAsTheFolder) {
  write(whole());
  const GenerateResult expected = run(*test::load_pipeline(folder_, test::tested_options()));
  const GenerateResult found = run(*load_file());
  EXPECT_EQ(floats(found.latents), floats(expected.latents));
  EXPECT_EQ(floats(found.images[0]), floats(expected.images[0]));
}

// As diffusers has it with force_zeros_for_empty_prompt, and the fixture's script has seen.
TEST_F(SdxlFile, NoNegativePromptIsZeros) {
  const auto pipeline = test::load_pipeline(folder_, test::tested_options());
  const Condition none = pipeline->encode_negative(std::nullopt, {1, PictureSizes::of(16, 24)});
  const Condition empty = pipeline->encode("", Told{1, PictureSizes::of(16, 24)});
  ASSERT_EQ(none.size(), empty.size());
  for (const auto& [name, tensor] : empty) {
    ASSERT_EQ(none.at(name).shape(), tensor.shape()) << name;
    const auto values = floats(none.at(name));
    if (name == kSizesOfCondition) {
      EXPECT_THAT(values, testing::ElementsAre(24, 16, 0, 0, 24, 16));
      continue;
    }
    EXPECT_THAT(values, testing::Each(0.0f)) << name;
    EXPECT_GT(test::relative_error(floats(tensor), values), 0.1) << name;
  }
}

TEST_F(SdxlFile, SaysWhatItPredicts) {
  SdxlTensors tensors = whole();
  write(tensors);
  const auto scheduler = [&] {
    return ModelParts::read(find_model(file_, base_)).sampling.scheduler;
  };
  EXPECT_EQ(scheduler().prediction, Prediction::kEpsilon);
  tensors["v_pred"] = Tensor::zeros(DType::kF32, {1});
  write(tensors);
  EXPECT_EQ(scheduler().prediction, Prediction::kV);
  EXPECT_FALSE(scheduler().zero_terminal_snr);
  tensors["ztsnr"] = Tensor::zeros(DType::kF32, {1});
  write(tensors);
  EXPECT_TRUE(scheduler().zero_terminal_snr);
  EXPECT_EQ(make_schedule(scheduler(), 4, 0).steps[0].timestep, 999);
  run(*load_file());
  tensors["edm_mean"] = Tensor::zeros(DType::kF32, {1});
  write(tensors);
  EXPECT_EQ(error_of(scheduler), file_.string() +
                                     ": has 'edm_mean': it was trained on EDM's noise levels, "
                                     "which are not supported");
}

TEST_F(SdxlFile, SizesAreToldAndCheckedByTheirRange) {
  const auto pipeline = test::load_pipeline(folder_, test::tested_options());
  Stepper stepper(*pipeline);
  JobRequest r;
  r.prompt = "two dogs";
  r.width = 16;
  r.height = 24;
  r.steps = 1;
  const auto latents = [&] {
    Job job = stepper.start(r);
    Job* const one[] = {&job};
    stepper.step(one);
    return floats(stepper.latents(job));
  };
  const auto own = latents();
  r.original = {16, 24, 0, 0};
  EXPECT_EQ(latents(), own);
  r.original = {32, 24, 0, 0};
  const auto wider = latents();
  EXPECT_NE(wider, own);
  r.original = {0, 0, 16, 0};
  EXPECT_NE(latents(), own);
  r.original = {0, 0, -1, 0};
  EXPECT_EQ(error_of(latents), "crop: -1 is not from 0 to 65536");
  r.original = {1 << 20, 1, 0, 0};
  EXPECT_EQ(error_of(latents), "original_size: 1048576 is not from 0 to 65536");
  r.original = {};
  r.height = 20;
  EXPECT_EQ(error_of(latents),
            "size: 16x20 is not allowed: width and height must be multiples of 8");
}

// As diffusers saves it, with what Python writes for a limit that is off.
TEST_F(SdxlFile, ASchedulersConfigMayHoldPythonsInfinity) {
  std::ofstream(folder_ / "scheduler" / "scheduler_config.json")
      << R"({"_class_name": "DPMSolverMultistepScheduler", "beta_schedule": "scaled_linear",
             "beta_start": 0.00085, "beta_end": 0.012, "lambda_min_clipped": -Infinity,
             "timestep_spacing": "leading", "steps_offset": 1, "_note": "-Infinity \"Infinity"})";
  const SchedulerConfig config = ModelParts::read(find_model(folder_)).sampling.scheduler;
  EXPECT_EQ(config.kind, SchedulerKind::kDpmSolver);
  EXPECT_NEAR(make_schedule(config, 30, 0).steps[0].sigma, 11.67605, 1e-4);
}

}  // namespace
}  // namespace halftone
