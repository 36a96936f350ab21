// Whole pipelines from a folder against diffusers: text states, latents, picture.
#include "halftone/engine/generate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "halftone/io/json.h"
#include "halftone/io/picture.h"
#include "halftone/io/png.h"
#include "halftone/io/safetensors_file.h"
#include "halftone/io/safetensors_writer.h"
#include "halftone/io/tokenizer.h"
#include "halftone/models/zimage/family.h"
#include "halftone/quantize/quantize_file.h"
#include "tests/support/backend.h"
#include "tests/support/data.h"
#include "tests/support/errors.h"
#include "tests/support/load_pipeline.h"
#include "tests/support/procedural.h"
#include "tests/support/run_graph.h"
#include "tests/support/silent.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_zimage.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;
using test::error_of;
using test::floats;
using test::relative_error;
using testing::HasSubstr;

using test::kData;

class FromFolder : public testing::Test {
 protected:
  void open(const std::string& name) {
    fixture_ =
        std::make_unique<SafetensorsFile>(kData / "zimage" / ("pipeline_" + name + ".safetensors"));
    case_ = parse_json(fixture_->metadata().at("case"), "fixture");
    test::write_zimage_folder(folder_, case_, kData / "tokenizer" / "tokenizer.json");
    schedule_.flow = parse_flow_match_config(case_["scheduler"], "fixture");
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
  std::unique_ptr<Pipeline> load() {
    options_.kernels = &test::tested_kernels();
    options_.stream = test::tested_stream();
    return test::load_pipeline(folder_, options_);
  }
  std::string load_error() {
    return error_of([&] { load(); });
  }

  test::TempDir dir_;
  fs::path folder_ = dir_ / "model";
  std::unique_ptr<SafetensorsFile> fixture_;
  nlohmann::json case_;
  SchedulerConfig schedule_;
  GenerateRequest request_;
  LoadOptions options_;
};

class PipelineGolden : public FromFolder, public testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(, PipelineGolden, testing::Values("guided", "plain"),
                         [](const auto& tested) { return tested.param; });

TEST_P(PipelineGolden, EqualsDiffusersFromPromptToPicture) {
  open(GetParam());
  const auto tokenizer = Tokenizer::load(folder_ / "tokenizer" / "tokenizer.json");
  const auto ids = fixture_->tensor("ids").as<int32_t>();
  EXPECT_EQ(tokenizer.encode(zimage::chat_prompt(request_.prompt)),
            std::vector<int32_t>(ids.begin(), ids.end()));

  const auto model = load();
  EXPECT_LE(relative_error(floats(model->encode(request_.prompt).at("text")),
                           floats(fixture_->tensor("states"))),
            2e-5);
  const auto result = generate(*model, request_, test::silent);
  EXPECT_LE(relative_error(floats(result.latents), floats(fixture_->tensor("latents.3"))), 1e-4);
  std::vector<float> images;
  for (const Tensor& image : result.images) {
    for (const float v : floats(image)) images.push_back(std::fmin(std::fmax(v, -1.0f), 1.0f));
  }
  EXPECT_LE(relative_error(images, floats(fixture_->tensor("image"))), 1e-4);
}

TEST_F(FromFolder, APictureDoesNotDependOnItsBatch) {
  open("guided");
  request_.noise.reset();
  request_.count = 3;
  request_.seed = 7;
  const auto model = load();
  request_.batch = 3;
  const auto together = generate(*model, request_, test::silent);
  request_.batch = 2;
  const auto apart = generate(*model, request_, test::silent);
  EXPECT_EQ(floats(together.latents), floats(apart.latents));
  request_.count = request_.batch = 1;
  request_.seed = 9;  // the third of the three
  const auto alone = generate(*model, request_, test::silent);
  EXPECT_EQ(floats(alone.latents), floats(together.latents.rows(2, 3)));
  EXPECT_NE(floats(alone.latents), floats(together.latents.rows(1, 2)));
}

// Latents in this precision, each from a model of its own.
std::vector<float> latents_of(Pipeline& model, const GenerateRequest& request) {
  return floats(generate(model, request, test::silent).latents);
}

TEST_F(FromFolder, EveryPrecisionRunsAndIsInvariantToTheBatch) {
  open("guided");
  request_.noise.reset();
  request_.count = request_.batch = 2;
  const auto exact = latents_of(*load(), request_);
  for (const Format& format : {formats::fp8, formats::fp8_tensor, formats::mxfp8, formats::nvfp4}) {
    options_.format = format;
    options_.activations = DType::kBF16;
    const auto model = load();
    EXPECT_EQ(model->model().report().formats,
              (std::map<std::string, int>{{std::string(format.name), 7 * 4}}));
    request_.batch = 2;
    const auto together = latents_of(*model, request_);
    request_.batch = 1;
    EXPECT_EQ(latents_of(*model, request_), together) << format.name;
    const double error = relative_error(together, exact);
    EXPECT_GT(error, 0.003) << format.name;
    EXPECT_LT(error, 0.5) << format.name;
  }
}

TEST_F(FromFolder, AQuantizedCheckpointRunsAsStored) {
  open("guided");
  const fs::path folder = folder_ / "transformer";
  const fs::path file = folder / "diffusion_pytorch_model.safetensors";
  FileQuantizeOptions how;
  how.include = {"layers.*", "noise_refiner.*", "context_refiner.*"};
  how.exclude = {"*adaLN*"};
  for (const Format& format : {formats::fp8, formats::mxfp8, formats::nvfp4}) {
    options_ = {};
    options_.format = format;
    options_.activations = DType::kBF16;
    const auto on_loading = latents_of(*load(), request_);
    how.format = format;
    fs::rename(file, dir_ / "original.safetensors");
    quantize_file(dir_ / "original.safetensors", file, how, cpu_kernels(), {2}, test::silent);
    options_ = {};
    options_.automatic = true;
    const auto model = load();
    EXPECT_TRUE(model->model().report().stored);
    if (options_.stream.device == nullptr) {
      EXPECT_EQ(model->plan({1, 16, 8, 12}, {}, {{"a"}}).owned_weights, 0) << "read in place";
    }
    EXPECT_EQ(latents_of(*model, request_), on_loading) << format.name;
    // In fp32 the weights are what their codes stand for, and activations are not rounded.
    options_ = {};
    options_.quantize_activations = false;
    const auto weights_only = latents_of(*load(), request_);
    EXPECT_NE(weights_only, on_loading);
    EXPECT_LT(relative_error(weights_only, on_loading), 0.3);
    fs::rename(dir_ / "original.safetensors", file);
  }
}

// The transformer as single files have it: q, k and v as one tensor, other names, a prefix.
void write_single_file(const fs::path& from, const fs::path& to, const std::string& prefix) {
  const SafetensorsFile whole(from);
  std::vector<std::pair<std::string, Tensor>> tensors;
  const auto renamed = [&](std::string name) {
    for (const auto& [old, fresh] :
         {std::pair<std::string, std::string>{"all_x_embedder.2-1.", "x_embedder."},
          {"all_final_layer.2-1.", "final_layer."},
          {"to_out.0.", "out."},
          {"norm_q.", "q_norm."},
          {"norm_k.", "k_norm."}}) {
      if (const size_t at = name.find(old); at != std::string::npos) {
        name.replace(at, old.size(), fresh);
      }
    }
    return prefix + name;
  };
  for (const TensorEntry& entry : whole.tensors()) {
    const size_t at = entry.name.find("to_q.weight");
    if (entry.name.find("to_k.") != std::string::npos ||
        entry.name.find("to_v.") != std::string::npos) {
      continue;
    }
    if (at == std::string::npos) {
      tensors.emplace_back(renamed(entry.name), whole.tensor(entry));
      continue;
    }
    const std::string base = entry.name.substr(0, at);
    Tensor fused = Tensor::empty(entry.dtype, {3 * entry.shape[0], entry.shape[1]});
    auto out = fused.mutable_bytes().data();
    for (const char* part : {"to_q.weight", "to_k.weight", "to_v.weight"}) {
      const auto bytes = whole.tensor(*whole.find(base + part)).bytes();
      out = std::copy(bytes.begin(), bytes.end(), out);
    }
    tensors.emplace_back(prefix + base + "qkv.weight", fused);
  }
  tensors.emplace_back(prefix + "norm_final.weight", Tensor::zeros(DType::kBF16, {4}));
  write_safetensors(to, tensors);
}

TEST_F(FromFolder, ASingleFileGivesTheSameBitsAsTheFolder) {
  open("guided");
  const auto expected = latents_of(*load(), request_);
  const fs::path original = folder_ / "transformer" / "diffusion_pytorch_model.safetensors";
  for (const char* prefix : {"", "model.diffusion_model."}) {
    const fs::path file = dir_ / "single.safetensors";
    write_single_file(original, file, prefix);
    EXPECT_EQ(find_model(file, folder_).family->name, "z-image");
    const auto model = test::load_pipeline(folder_, options_, file);
    EXPECT_EQ(latents_of(*model, request_), expected) << prefix;
  }
  EXPECT_THAT(error_of([&] {
                find_model(folder_ / "vae" / "diffusion_pytorch_model.safetensors", folder_);
              }),
              HasSubstr("is not a known family by the names of its tensors"));
  // Without a config next to it the rotation axes of odd heads are not known.
  fs::remove(folder_ / "transformer" / "config.json");
  EXPECT_THAT(
      error_of([&] { test::load_pipeline(folder_, options_, dir_ / "single.safetensors"); }),
      HasSubstr("need a transformer/config.json"));
}

TEST_F(FromFolder, WeightsWithNanAreNamedBeforeAnyWork) {
  open("plain");
  const fs::path file = folder_ / "vae" / "diffusion_pytorch_model.safetensors";
  std::vector<std::pair<std::string, Tensor>> tensors;
  {
    const SafetensorsFile whole(file);
    for (const TensorEntry& entry : whole.tensors()) {
      Tensor copy = Tensor::empty(entry.dtype, entry.shape);
      const auto bytes = whole.tensor(entry).bytes();
      std::copy(bytes.begin(), bytes.end(), copy.mutable_bytes().begin());
      if (entry.name == "decoder.conv_in.weight") copy.mutable_as<bf16>()[5] = to_bf16(NAN);
      tensors.emplace_back(entry.name, copy);
    }
  }
  write_safetensors(file, tensors);
  EXPECT_EQ(load_error(), file.string() + ": tensor 'decoder.conv_in.weight' holds NaN or Inf");
}

TEST_F(FromFolder, ANewStrengthBuildsNothingAgain) {
  open("guided");
  const std::string module = "transformer.layers.0.attention.to_q.";
  const int64_t dim = case_["transformer"]["dim"];
  write_safetensors(dir_ / "lora.safetensors",
                    {{module + "lora_A.weight", test::procedural_weight("a", {4, dim})},
                     {module + "lora_B.weight", test::procedural_weight("b", {dim, 4})}});
  const auto plain = latents_of(*load(), request_);
  const auto model = load();
  const auto adapter = model->model().load_adapter((dir_ / "lora.safetensors").string());
  request_.adapters = {{adapter, 1.0f}};
  const auto full = latents_of(*model, request_);
  EXPECT_GT(relative_error(full, plain), 1e-3);
  const int built = model->programs_built();
  EXPECT_GT(built, 2);
  request_.adapters = {{adapter, 0.0f}};
  EXPECT_EQ(latents_of(*model, request_), plain);
  EXPECT_EQ(model->programs_built(), built);
}

TEST_F(FromFolder, BadRequestsAreRefusedBeforeAnyWork) {
  open("plain");
  const auto model = load();
  const auto refused = [&](const auto& change) {
    GenerateRequest bad = request_;
    change(bad);
    return error_of([&] { generate(*model, bad, test::silent); });
  };
  EXPECT_EQ(refused([](auto& r) { r.width = 18; }),
            "size: 18x32 is not allowed: width and height must be multiples of 4");
  EXPECT_EQ(
      refused([](auto& r) { r.height = 4096; }),
      "size: 16x4096 is more than the 256x256 that transformer/config.json has positions for");
  EXPECT_THAT(refused([](auto& r) { r.prompt = std::string(3000, 'z'); }),
              HasSubstr("tokens are more than the 512"));
  EXPECT_THAT(refused([](auto& r) { r.count = 2; }),
              HasSubstr("noise: is F32 [1, 16, 16, 8] instead of F32 [2, 16, 16, 8]"));
}

TEST_F(FromFolder, EveryTensorIsAccountedFor) {
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

TEST_F(FromFolder, FoldersThatAreNotWholeAreNamed) {
  open("plain");
  EXPECT_EQ(find_model(folder_).family->name, "z-image");
  EXPECT_THAT(error_of([&] { find_model(dir_ / "none"); }),
              HasSubstr("none: no such model: there is no such folder or file"));
  EXPECT_THAT(error_of([&] { find_model(dir_.path()); }),
              HasSubstr(dir_.path().string() + ": has no model_index.json"));
  test::write_file(dir_ / "model_index.json", "{}");
  EXPECT_THAT(error_of([&] { find_model(dir_.path()); }),
              HasSubstr("is not a known family: model_index.json names no pipeline"));
  fs::remove(folder_ / "vae" / "config.json");
  EXPECT_EQ(load_error(), (folder_ / "vae" / "config.json").string() + ": no such file");
}

// Each file that says what the folder is, with something that would change the result.
TEST_F(FromFolder, SettingsThatAreNotHonouredAreNamed) {
  open("plain");
  const auto error = [&](const fs::path& file, const nlohmann::json& content) {
    const bool existed = fs::exists(folder_ / file);
    const std::string before = existed ? test::read_file(folder_ / file) : "";
    test::write_file(folder_ / file, content.dump());
    const std::string message = load_error();
    existed ? test::write_file(folder_ / file, before) : (void)fs::remove(folder_ / file);
    return message;
  };
  const auto index = [&](const char* part, const nlohmann::json& value) {
    return error("model_index.json", {{"_class_name", "ZImagePipeline"}, {part, value}});
  };
  EXPECT_EQ(index("scheduler", {"diffusers", "FlowMatchEulerDiscreteScheduler"}), "(no error)");
  EXPECT_EQ(index("text_encoder", {"transformers", "Qwen3Model"}), "(no error)");
  EXPECT_EQ(index("safety_checker", {nullptr, nullptr}), "(no error)");
  EXPECT_THAT(index("scheduler", {"diffusers", "FlowMatchLCMScheduler"}),
              HasSubstr("model_index.json: 'scheduler' is a FlowMatchLCMScheduler, and only "
                        "FlowMatchEulerDiscreteScheduler is supported"));
  EXPECT_THAT(index("vae", {"diffusers", "AutoencoderTiny"}), HasSubstr("'vae' is a Autoenc"));
  EXPECT_THAT(index("vae", "AutoencoderKL"), HasSubstr("'vae' is not [library, class]"));
  EXPECT_THAT(index("siglip", {"transformers", "Siglip2"}), HasSubstr("'siglip' is not known"));
  const auto tokenizer = [&](const nlohmann::json& content) {
    return error("tokenizer/tokenizer_config.json", content);
  };
  EXPECT_EQ(tokenizer({{"tokenizer_class", "Qwen2Tokenizer"},
                       {"add_prefix_space", false},
                       {"model_max_length", 131072},
                       {"eos_token", "<|im_end|>"}}),
            "(no error)");
  EXPECT_THAT(tokenizer({{"tokenizer_class", "T5Tokenizer"}}),
              HasSubstr("tokenizer_config.json: 'tokenizer_class' is \"T5Tokenizer\""));
  EXPECT_THAT(tokenizer({{"add_bos_token", true}}), HasSubstr("'add_bos_token' is true"));
  EXPECT_THAT(tokenizer({{"add_prefix_space", true}}), HasSubstr("'add_prefix_space' is true"));
  EXPECT_THAT(tokenizer({{"new_trick", 1}}), HasSubstr("'new_trick' is not known"));
  EXPECT_THAT(tokenizer({{"added_tokens_decoder", {{"7", {{"content", "<new>"}}}}}}),
              HasSubstr("'added_tokens_decoder' has a token '7' that tokenizer.json has not"));
  const auto id = Tokenizer::load(folder_ / "tokenizer" / "tokenizer.json").find("<|im_end|>");
  EXPECT_EQ(tokenizer({{"added_tokens_decoder",
                        {{std::to_string(id.value()), {{"content", "<|im_end|>"}}}}}}),
            "(no error)");
  EXPECT_THAT(tokenizer({{"chat_template", "{% macro x() %}"}}),
              HasSubstr("tokenizer_config.json: 'chat_template' uses the statement 'macro'"));
}

TEST_F(FromFolder, TheTokenizersOwnTemplateIsApplied) {
  open("plain");
  const auto usual = floats(load()->encode("two dogs").at("text"));
  const auto with = [&](const std::string& chat) {
    test::write_file(folder_ / "tokenizer" / "chat_template.jinja", chat);
    return floats(load()->encode("two dogs").at("text"));
  };
  const std::string turn = "<|im_start|>user\n{{ messages[0].content }}<|im_end|>\n";
  EXPECT_EQ(with(turn + "<|im_start|>assistant\n\n"), usual);
  EXPECT_NE(with(turn), usual);
  // What follows a prompt's token does not change it: its states come back in another place.
  const auto bare = with("{{ messages[0].content }}");
  EXPECT_LT(bare.size(), usual.size());
}

// Weights that are numbers, each of them, and give none.
TEST_F(FromFolder, APictureThatIsNoneIsAnError) {
  open("plain");
  const fs::path file = folder_ / "vae" / "diffusion_pytorch_model.safetensors";
  std::vector<std::pair<std::string, Tensor>> tensors;
  {
    const SafetensorsFile whole(file);
    for (const TensorEntry& entry : whole.tensors()) {
      Tensor copy = Tensor::empty(entry.dtype, entry.shape);
      const auto bytes = whole.tensor(entry).bytes();
      std::copy(bytes.begin(), bytes.end(), copy.mutable_bytes().begin());
      if (entry.name == "decoder.conv_out.weight") {
        for (bf16& v : copy.mutable_as<bf16>()) v = to_bf16(3e38f);
      }
      tensors.emplace_back(entry.name, copy);
    }
  }
  write_safetensors(file, tensors);
  const auto model = load();
  EXPECT_EQ(error_of([&] { generate(*model, request_, test::silent); }),
            "pixels: hold NaN or Inf: is the VAE damaged?");
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

TEST(Picture, DrawsPicturesAndText) {
  const test::TempDir dir;
  Picture sheet(60, 20, {255, 255, 255});
  sheet.draw(Picture(10, 10, {9, 8, 7}), 55, -5);  // half of it outside, on two sides
  EXPECT_EQ(sheet.rgb()[55 * 3], 9);
  EXPECT_EQ(sheet.rgb()[54 * 3], 255);
  EXPECT_EQ(sheet.rgb()[(5 * 60 + 55) * 3], 255);
  sheet.draw_text("Hi", 2, 2, {0, 0, 0});
  int dark = 0;
  for (int64_t i = 0; i < 60 * 20; ++i) dark += sheet.rgb()[i * 3] < 64 ? 1 : 0;
  EXPECT_GT(dark, 15);
  sheet.write(dir / "sheet.png", {{"a", "b"}});
  EXPECT_EQ(read_png(dir / "sheet.png").rgb, sheet.rgb());
  EXPECT_EQ(text_width("ä"), text_width("?"));
  EXPECT_EQ(fit_text("short", 100), "short");
  EXPECT_LE(text_width(fit_text("a rather long prompt", 60)), 60);
  EXPECT_THAT(fit_text("a rather long prompt", 60), testing::EndsWith("..."));
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
              HasSubstr("no/x.png: there is no folder"));
  test::write_file(dir / "bad.png", "not a png at all");
  EXPECT_THAT(error_of([&] { read_png(dir / "bad.png"); }), HasSubstr("bad.png: PNG"));
}

}  // namespace
}  // namespace halftone
