// An adapter of SDXL's linears, convolutions and both text encoders in the namings that are found,
// against diffusers with PEFT: text states, vectors and latents at several strengths.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "halftone/io/json.h"
#include "halftone/io/safetensors_file.h"
#include "halftone/io/safetensors_writer.h"
#include "tests/support/data.h"
#include "tests/support/errors.h"
#include "tests/support/load_pipeline.h"
#include "tests/support/procedural.h"
#include "tests/support/run_graph.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tested_options.h"
#include "tests/support/tiny_folder.h"

namespace halftone {
namespace {

using nlohmann::json;
using test::error_of;
using test::floats;
using test::relative_error;
using testing::HasSubstr;

// How a file spells the modules of each part.
struct Spelling {
  const char *unet, *first, *second;
  const char *down, *up;
  bool flat = false;         // underscores
  bool in_model = false;     // encoders' paths begin with text_model
  bool single_file = false;  // the U-Net's blocks are numbered through
};
constexpr Spelling kSpellings[] = {
    {"unet.", "text_encoder.", "text_encoder_2.", ".lora_A.weight", ".lora_B.weight"},
    {"unet.", "text_encoder.", "text_encoder_2.", ".lora.down.weight", ".lora.up.weight", false,
     true},
    {"lora_unet_", "lora_te1_", "lora_te2_", ".lora_down.weight", ".lora_up.weight", true, true},
    {"lora_unet_", "lora_te1_", "lora_te2_", ".lora_down.weight", ".lora_up.weight", true, true,
     true},
    {"diffusion_model.", "text_encoders.clip_l.transformer.", "text_encoders.clip_g.transformer.",
     ".lora_down.weight", ".lora_up.weight", false, true, true},
};

class SdxlLora : public testing::Test {
 protected:
  SdxlLora()
      : fixture_(test::kData / "sdxl" / "pipeline_lora.safetensors"),
        case_(parse_json(fixture_.metadata().at("case"), "fixture")) {
    test::write_tiny_folder(dir_ / "model", case_);
    pipeline_ = test::load_pipeline(dir_ / "model", test::tested_options());
    targets_ = pipeline_->model().parts().adapted();
  }

  // Of single files: the path to the same weight.
  std::string single_file_path(const std::string& path) const {
    for (const char* begin : {"input_blocks.", "middle_block.", "output_blocks.", "out."}) {
      for (const auto& [other, list] : targets_.denoiser) {
        if (other.starts_with(begin) && list.at(0).weight == path + ".weight") return other;
      }
    }
    ADD_FAILURE() << path;
    return path;
  }
  std::string module_name(const std::string& part, std::string path, const Spelling& how) const {
    std::string prefix = how.unet;
    if (part == "unet") {
      if (how.single_file) path = single_file_path(path);
    } else {
      prefix = part == "text_encoder" ? how.first : how.second;
      if (how.in_model) path = "text_model." + path;
    }
    if (how.flat) std::replace(path.begin(), path.end(), '.', '_');
    return prefix + path;
  }
  using Tensors = std::vector<std::pair<std::string, Tensor>>;
  Tensors tensors(const Spelling& how) const {
    Tensors all;
    const int64_t rank = case_["rank"];
    for (const auto& [name, sizes] : case_["shapes"].items()) {
      const size_t dot = name.find('.');
      const std::string module = module_name(name.substr(0, dot), name.substr(dot + 1), how);
      const auto dims = sizes.get<std::vector<int64_t>>();
      std::vector<int64_t> down = dims, up = {dims[0], rank};
      down[0] = rank;
      if (dims.size() == 4) up.insert(up.end(), {1, 1});
      all.emplace_back(module + how.down,
                       test::procedural_weight(name + ".lora_A.weight", Shape(down)));
      all.emplace_back(module + how.up,
                       test::procedural_weight(name + ".lora_B.weight", Shape(up)));
      all.emplace_back(module + ".alpha", test::f32_tensor({1}, {case_["alpha"].get<float>()}));
    }
    return all;
  }
  std::shared_ptr<const Adapter> load(const Tensors& tensors) const {
    const std::string file = dir_ / "lora.safetensors";
    write_safetensors(file, tensors);
    return pipeline_->model().load_adapter(file);
  }
  JobRequest request(const AdapterChoices& adapters) const {
    JobRequest r;
    r.prompt = case_["prompt"];
    r.negative = case_["negative"];
    r.width = case_["size"][0];
    r.height = case_["size"][1];
    r.steps = 2;
    r.guidance = 3;
    r.adapters = adapters;
    r.noise = test::procedural_uniform("lora.noise", fixture_.tensor("none.latents").shape(),
                                       std::sqrt(3.0f));
    return r;
  }
  std::vector<float> alone(const JobRequest& r) {
    Stepper stepper(*pipeline_);
    Job job = stepper.start(r);
    Job* const one[] = {&job};
    while (!job.done()) stepper.step(one);
    return floats(stepper.latents(job));
  }
  void expect_as(const std::string& key, const AdapterChoices& adapters) {
    const auto golden = [&](const char* name) { return floats(fixture_.tensor(key + "." + name)); };
    const Condition text = pipeline_->encode(case_["prompt"], adapters);
    EXPECT_LE(relative_error(floats(text.at("text")), golden("states")), 2e-5);
    EXPECT_LE(relative_error(floats(text.at("pooled")), golden("pooled")), 2e-5);
    const Condition negative =
        pipeline_->encode_negative(case_["negative"].get<std::string>(), {}, adapters);
    EXPECT_LE(relative_error(floats(negative.at("text")), golden("negative")), 2e-5);
    EXPECT_LE(relative_error(floats(negative.at("pooled")), golden("negative_pooled")), 2e-5);
    EXPECT_LE(relative_error(alone(request(adapters)), golden("latents")), 5e-5);
  }

  test::TempDir dir_;
  SafetensorsFile fixture_;
  json case_;
  std::unique_ptr<Pipeline> pipeline_;
  AdaptedModel targets_;
};

TEST_F(SdxlLora, EqualsDiffusersInEverySpelling) {
  expect_as("none", {});
  for (const Spelling& how : kSpellings) {
    SCOPED_TRACE(how.first + std::string(how.down) + (how.single_file ? " of a single file" : ""));
    const auto adapter = load(tensors(how));
    EXPECT_THAT(adapter->lora().report().unmatched, testing::IsEmpty());
    // The first encoder's last layer does not run.
    EXPECT_EQ(adapter->lora().report().matched, static_cast<int>(case_["shapes"].size()) - 1);
    for (const float strength : case_["strengths"].get<std::vector<float>>()) {
      expect_as(fmt::format("{:.1f}", strength), {{adapter, strength}});
    }
    // What was encoded with an adapter is not taken for what is without, nor for another strength.
    expect_as("none", {});
  }
}

TEST_F(SdxlLora, RowsOfOneBatchHaveTheBitsOfRunsAlone) {
  const auto adapter = load(tensors(kSpellings[0]));
  Tensors text;
  for (const auto& tensor : tensors(kSpellings[2])) {
    if (tensor.first.starts_with("lora_te")) text.push_back(tensor);
  }
  write_safetensors(dir_ / "text.safetensors", text);  // nothing for the U-Net
  const auto of_text = pipeline_->model().load_adapter(dir_ / "text.safetensors");
  const std::vector<JobRequest> requests = {request({}), request({{adapter, 0.6f}}),
                                            request({{adapter, -1.5f}}), request({{of_text, 0.6f}}),
                                            request({{of_text, 0.3f}, {adapter, 0.2f}})};
  std::vector<std::vector<float>> expected;
  for (const JobRequest& r : requests) expected.push_back(alone(r));
  Stepper stepper(*pipeline_);
  std::vector<Job> jobs;
  for (const JobRequest& r : requests) jobs.push_back(stepper.start(r));
  std::vector<Job*> all;
  for (Job& job : jobs) all.push_back(&job);
  for (int i = 0; i < 2; ++i) stepper.step(all);
  for (size_t i = 0; i < jobs.size(); ++i) {
    EXPECT_EQ(floats(stepper.latents(jobs[i])), expected[i]) << "job " << i;
    for (size_t k = 0; k < i; ++k) EXPECT_NE(expected[i], expected[k]);
  }
  EXPECT_GT(pipeline_->plan({1, 4, 8, 8}, {}, std::vector<std::string>{"a cat"}, {{of_text, 1.0f}})
                .owned_weights,
            pipeline_->plan({1, 4, 8, 8}, {}, std::vector<std::string>{"a cat"}).owned_weights);
}

// Encoders and denoiser in turns: both are placed anew, and their adapters stay.
TEST_F(SdxlLora, PartsMayTakeTurns) {
  const auto adapter = load(tensors(kSpellings[0]));
  const std::vector<JobRequest> requests = {request({{adapter, 0.6f}}), request({}),
                                            request({{adapter, -1.5f}})};
  std::vector<std::vector<float>> expected;
  for (const JobRequest& r : requests) expected.push_back(alone(r));
  pipeline_ = test::load_pipeline(dir_ / "model", test::tested_options());
  pipeline_->take_turns();
  for (size_t i = 0; i < requests.size(); ++i) EXPECT_EQ(alone(requests[i]), expected[i]) << i;
}

TEST_F(SdxlLora, OtherKindsAreRefusedByNameInEverySpelling) {
  const std::pair<const char*, const char*> kinds[] = {
      {".dora_scale", "DoRA"},
      {".lora_magnitude_vector", "DoRA"},
      {".hada_w1_a", "LoHa"},
      {".lokr_w1", "LoKr"},
      {".lokr_w2_a", "LoKr"},
      {".lora_mid.weight", "LoCon with a core tensor"},
      {".lora_A.bias", "LoRA with biases"}};
  for (const Spelling& how : kSpellings) {
    const Tensors good = tensors(how);
    for (const char* part : {"unet", "text_encoder", "text_encoder_2"}) {
      const std::string path = part == std::string("unet") ? "down_blocks.0.resnets.0.conv1"
                                                           : "encoder.layers.0.self_attn.out_proj";
      const std::string module = module_name(part, path, how);
      for (const auto& [end, kind] : kinds) {
        Tensors bad = good;
        bad.emplace_back(module + end, test::f32_tensor({2}, {1, 2}));
        EXPECT_THAT(error_of([&] { load(bad); }),
                    HasSubstr("tensor '" + module + end +
                              "' is part of an adapter of another kind: " + kind));
      }
    }
  }
  // Shapes of convolutions are checked like those of linears.
  Tensors odd = tensors(kSpellings[0]);
  for (auto& [name, tensor] : odd) {
    if (name == "unet.conv_in.lora_A.weight") tensor = Tensor::zeros(DType::kF32, {3, 4, 1, 1});
  }
  EXPECT_THAT(error_of([&] { load(odd); }),
              HasSubstr("tensor 'unet.conv_in.lora_A.weight' is [3, 4, 1, 1] instead of "
                        "[rank, 4, 3, 3]"));
}

}  // namespace
}  // namespace halftone
