// Whole pipelines from a folder against diffusers: text states, latents, picture.
#include "halftone/diffusion/generate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "halftone/io/json.h"
#include "halftone/io/png.h"
#include "halftone/io/safetensors_file.h"
#include "halftone/io/safetensors_writer.h"
#include "halftone/io/tokenizer.h"
#include "halftone/models/zimage/model.h"
#include "tests/support/errors.h"
#include "tests/support/procedural.h"
#include "tests/support/run_graph.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_zimage.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;
using test::error_of;
using test::floats;
using test::relative_error;
using testing::HasSubstr;

const fs::path kData = HALFTONE_TEST_DATA;
const auto kSilent = [](const Progress&) {};

class Pipeline : public testing::Test {
 protected:
  void open(const std::string& name) {
    fixture_ =
        std::make_unique<SafetensorsFile>(kData / "zimage" / ("pipeline_" + name + ".safetensors"));
    case_ = parse_json(fixture_->metadata().at("case"), "fixture");
    test::write_zimage_folder(folder_, case_, kData / "tokenizer" / "tokenizer.json");
    schedule_ = parse_flow_match_config(case_["scheduler"], "fixture");
    request_.prompt = case_["prompt"];
    request_.negative = case_["negative"];
    request_.width = case_["size"][0];
    request_.height = case_["size"][1];
    request_.steps = case_["steps"];
    request_.guidance = case_["guidance"];
    request_.count = case_["count"];
    request_.batch = request_.count;
    request_.noise = test::procedural_uniform(
        name + ".noise", {request_.count, 16, request_.height / 2, request_.width / 2},
        std::sqrt(3.0f));
  }
  std::unique_ptr<DiffusionModel> load() {
    options_.kernels = &cpu_kernels();
    options_.stream = {2};
    return zimage::load_model({folder_, {}}, options_);
  }
  std::string load_error() {
    return error_of([&] { load(); });
  }

  test::TempDir dir_;
  fs::path folder_ = dir_ / "model";
  std::unique_ptr<SafetensorsFile> fixture_;
  nlohmann::json case_;
  FlowMatchConfig schedule_;
  GenerateRequest request_;
  LoadOptions options_;
};

class PipelineGolden : public Pipeline, public testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(, PipelineGolden, testing::Values("guided", "plain"),
                         [](const auto& tested) { return tested.param; });

TEST_P(PipelineGolden, EqualsDiffusersFromPromptToPicture) {
  open(GetParam());
  const auto tokenizer = Tokenizer::load(folder_ / "tokenizer" / "tokenizer.json");
  const auto ids = fixture_->tensor("ids").as<int32_t>();
  EXPECT_EQ(tokenizer.encode(zimage::chat_prompt(request_.prompt)),
            std::vector<int32_t>(ids.begin(), ids.end()));

  const auto model = load();
  EXPECT_LE(relative_error(floats(model->encode(request_.prompt).states),
                           floats(fixture_->tensor("states"))),
            2e-5);
  const auto result = generate(*model, schedule_, request_, kSilent);
  EXPECT_LE(relative_error(floats(result.latents), floats(fixture_->tensor("latents.3"))), 1e-4);
  std::vector<float> images;
  for (const Tensor& image : result.images) {
    for (const float v : floats(image)) images.push_back(std::fmin(std::fmax(v, -1.0f), 1.0f));
  }
  EXPECT_LE(relative_error(images, floats(fixture_->tensor("image"))), 1e-4);
}

TEST_F(Pipeline, APictureDoesNotDependOnItsBatch) {
  open("guided");
  request_.noise.reset();
  request_.count = 3;
  request_.seed = 7;
  const auto model = load();
  request_.batch = 3;
  const auto together = generate(*model, schedule_, request_, kSilent);
  request_.batch = 2;
  const auto apart = generate(*model, schedule_, request_, kSilent);
  EXPECT_EQ(floats(together.latents), floats(apart.latents));
  request_.count = request_.batch = 1;
  request_.seed = 9;  // the third of the three
  const auto alone = generate(*model, schedule_, request_, kSilent);
  EXPECT_EQ(floats(alone.latents), floats(together.latents.rows(2, 3)));
  EXPECT_NE(floats(alone.latents), floats(together.latents.rows(1, 2)));
}

TEST_F(Pipeline, BadRequestsAreRefusedBeforeAnyWork) {
  open("plain");
  const auto model = load();
  const auto refused = [&](const auto& change) {
    GenerateRequest bad = request_;
    change(bad);
    return error_of([&] { generate(*model, schedule_, bad, kSilent); });
  };
  EXPECT_EQ(refused([](auto& r) { r.width = 18; }),
            "--size: 18x32 is not allowed: width and height must be multiples of 4");
  EXPECT_EQ(refused([](auto& r) { r.height = 4096; }),
            "--size: 16x4096 is more than the 256x256 of this model");
  EXPECT_THAT(refused([](auto& r) { r.prompt = std::string(3000, 'z'); }),
              HasSubstr("tokens are more than the 512"));
  EXPECT_THAT(refused([](auto& r) { r.count = 2; }),
              HasSubstr("noise: is F32 [1, 16, 16, 8] instead of F32 [2, 16, 16, 8]"));
}

TEST_F(Pipeline, EveryTensorIsAccountedFor) {
  open("plain");
  const fs::path file = folder_ / "transformer" / "diffusion_pytorch_model.safetensors";
  std::vector<std::pair<std::string, Tensor>> tensors;
  {
    const SafetensorsFile whole(file);
    for (const TensorEntry& entry : whole.tensors()) {
      if (entry.name == "x_pad_token") continue;
      if (entry.name == "t_embedder.mlp.0.bias") {
        tensors.emplace_back(entry.name, Tensor::zeros(DType::kBF16, {7}));
      } else {
        tensors.emplace_back(entry.name, whole.tensor(entry));
      }
    }
    tensors.emplace_back("stray.weight", Tensor::zeros(DType::kBF16, {1}));
    write_safetensors(file, tensors);
  }
  EXPECT_EQ(load_error(),
            (folder_ / "transformer")
                    .string()
                    .append("/diffusion_pytorch_model.safetensors: tensors do not fit: ") +
                "1 missing: 'x_pad_token'; 1 mis-shaped: 't_embedder.mlp.0.bias' is BF16 [7] "
                "instead of [1024]; "
                "1 unexpected: 'stray.weight'");
}

TEST_F(Pipeline, FoldersThatAreNotWholeAreNamed) {
  open("plain");
  EXPECT_TRUE(zimage::is_zimage_folder(folder_));
  EXPECT_FALSE(zimage::is_zimage_folder(dir_.path()));
  fs::remove(folder_ / "vae" / "config.json");
  EXPECT_EQ(load_error(), (folder_ / "vae" / "config.json").string() + ": no such file");
}

TEST(Noise, IsGaussianAndAFunctionOfTheSeed) {
  const Tensor a = seeded_noise({1, 16, 64, 64}, 1), b = seeded_noise({1, 16, 64, 64}, 2);
  double sum = 0, squares = 0;
  for (const float v : floats(a)) sum += v, squares += double{v} * v;
  const auto n = static_cast<double>(a.numel());
  EXPECT_NEAR(sum / n, 0, 0.02);
  EXPECT_NEAR(squares / n, 1, 0.02);
  EXPECT_EQ(floats(a), floats(seeded_noise({1, 16, 64, 64}, 1)));
  EXPECT_NE(floats(a), floats(b));
}

TEST(Png, CarriesPixelsAndText) {
  const test::TempDir dir;
  Tensor image = Tensor::zeros(DType::kF32, {3, 2, 3});
  image.mutable_as<float>()[0] = 1.5f;    // red of the first pixel, beyond white
  image.mutable_as<float>()[17] = -1.0f;  // blue of the last
  write_png(dir / "x.png", image, {{"prompt", "ein Apfel 🍎"}, {"seed", "7"}});
  const PngImage back = read_png(dir / "x.png");
  EXPECT_EQ(back.width, 3);
  EXPECT_EQ(back.height, 2);
  EXPECT_EQ(back.rgb[0], 255);
  EXPECT_EQ(back.rgb[1], 128);
  EXPECT_EQ(back.rgb[17], 0);
  EXPECT_EQ(back.text, (PngText{{"prompt", "ein Apfel 🍎"}, {"seed", "7"}}));
  EXPECT_THAT(error_of([&] { write_png(dir / "no/x.png", image, {}); }),
              HasSubstr("no/x.png: No such file"));
  test::write_file(dir / "bad.png", "not a png at all");
  EXPECT_THAT(error_of([&] { read_png(dir / "bad.png"); }), HasSubstr("bad.png: PNG"));
}

}  // namespace
}  // namespace halftone
