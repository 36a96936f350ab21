// A model runs from the file of any tool, and gives the bits that it gives from ours.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "halftone/engine/generate.h"
#include "halftone/io/json.h"
#include "halftone/io/quantization_metadata.h"
#include "halftone/io/safetensors_writer.h"
#include "halftone/models/zimage/names.h"
#include "halftone/models/zimage/transformer.h"
#include "halftone/numerics/minifloat.h"
#include "halftone/quantize/convert_file.h"
#include "halftone/quantize/quantize_file.h"
#include "tests/support/backend.h"
#include "tests/support/load_pipeline.h"
#include "tests/support/silent.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_zimage.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;

class ForeignModel : public testing::Test {
 protected:
  ForeignModel() {
    const fs::path data = HALFTONE_TEST_DATA;
    const SafetensorsFile fixture(data / "zimage" / "pipeline_plain.safetensors");
    case_ = parse_json(fixture.metadata().at("case"), "fixture");
    test::write_zimage_folder(folder_, case_, data / "tokenizer" / "tokenizer.json");
    schedule_.flow = parse_flow_match_config(case_["scheduler"], "fixture");
    request_.prompt = "a circle";
    request_.width = case_["size"][0];
    request_.height = case_["size"][1];
    request_.steps = 2;
  }

  std::vector<float> latents(const fs::path& transformer = {}) {
    LoadOptions options;
    options.automatic = true;
    options.kernels = &test::tested_kernels();
    options.stream = test::tested_stream();
    const auto model = test::load_pipeline(folder_, options, transformer);
    EXPECT_TRUE(model->model().report().stored);
    const GenerateResult made = generate(*model, request_, test::silent);
    const auto span = made.latents.as<float>();
    return {span.begin(), span.end()};
  }
  void quantize(const fs::path& from, const fs::path& to, const Format& format) {
    FileQuantizeOptions how;
    how.format = format;
    how.include = {"*layers.*", "*noise_refiner.*", "*context_refiner.*"};
    how.exclude = {"*adaLN*"};
    quantize_file(from, to, how, cpu_kernels(), {2}, test::silent);
  }

  test::TempDir dir_;
  fs::path folder_ = dir_ / "model";
  fs::path file_ = folder_ / "transformer" / "diffusion_pytorch_model.safetensors";
  nlohmann::json case_;
  SchedulerConfig schedule_;
  GenerateRequest request_;
};

// q, k and v as one tensor under a prefix, as single files have them.
void fuse(const fs::path& from, const fs::path& to, const std::string& prefix) {
  const SafetensorsFile whole(from);
  std::map<std::string, std::vector<std::pair<std::string, Tensor>>> fused;
  std::vector<std::pair<std::string, Tensor>> tensors;
  for (const TensorEntry& entry : whole.tensors()) {
    std::string name = entry.name;
    for (const char* part : {"to_q.", "to_k.", "to_v."}) {
      if (const size_t at = name.find(part); at != std::string::npos) name.replace(at, 5, "qkv.");
    }
    if (name != entry.name) {
      // q, then k, then v: not the order of the alphabet.
      const int order = entry.name.find("to_q.") != std::string::npos   ? 0
                        : entry.name.find("to_k.") != std::string::npos ? 1
                                                                        : 2;
      fused[prefix + name].emplace_back(std::to_string(order), whole.tensor(entry));
      continue;
    }
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
    tensors.emplace_back(prefix + name, whole.tensor(entry));
  }
  for (auto& [name, parts] : fused) {
    std::sort(parts.begin(), parts.end(),
              [](const auto& a, const auto& b) { return a.first < b.first; });
    const Tensor& q = parts[0].second;
    Tensor all = Tensor::empty(q.dtype(), {3 * q.shape()[0], q.shape()[1]});
    auto* out = all.mutable_bytes().data();
    for (const auto& [order, part] : parts) {
      out = std::copy(part.bytes().begin(), part.bytes().end(), out);
    }
    tensors.emplace_back(name, all);
  }
  write_safetensors(to, tensors);
}

TEST_F(ForeignModel, GivesTheBitsOfOurOwnFile) {
  fs::rename(file_, dir_ / "original.safetensors");
  for (const Format& format : {formats::fp8, formats::fp8_tensor, formats::mxfp8, formats::nvfp4}) {
    const fs::path ours = dir_ / "ours.safetensors";
    quantize(dir_ / "original.safetensors", ours, format);
    fs::copy_file(ours, file_, fs::copy_options::overwrite_existing);
    const auto expected = latents();
    for (const Dialect dialect :
         {Dialect::kComfyUI, Dialect::kModelOpt, Dialect::kCompressedTensors, Dialect::kTorchao}) {
      if (dialect == Dialect::kComfyUI && format.span == ScaleSpan::kRow) continue;
      convert_file(ours, file_, {dialect, {}}, test::silent);
      EXPECT_EQ(latents(), expected) << to_string(dialect) << " " << format.name;
    }
  }
}

TEST_F(ForeignModel, FusedTensorsUnderAPrefixWork) {
  const fs::path single = dir_ / "single.safetensors", ours = dir_ / "ours.safetensors",
                 theirs = dir_ / "theirs.safetensors";
  fuse(file_, single, "model.diffusion_model.");
  quantize(single, ours, formats::nvfp4);
  const auto expected = latents(ours);
  for (const Dialect dialect :
       {Dialect::kComfyUI, Dialect::kModelOpt, Dialect::kCompressedTensors, Dialect::kTorchao}) {
    convert_file(ours, theirs, {dialect, {}}, test::silent);
    EXPECT_EQ(find_model(theirs, folder_).family->name, "z-image");
    EXPECT_EQ(latents(theirs), expected) << to_string(dialect);
  }
}

// Every tensor in FP8, norms and biases too. Linears compute in FP8 under a scale of 1, and
// everything else with the values as they are.
TEST_F(ForeignModel, PlainFp8IsFp8UnderAScaleOfOne) {
  std::vector<std::pair<std::string, Tensor>> plain, ours;
  QuantizationMetadata metadata;
  Tensor one = Tensor::empty(DType::kF32, {1});
  one.mutable_as<float>()[0] = 1;
  {
    const SafetensorsFile whole(file_);
    for (const TensorEntry& entry : whole.tensors()) {
      const Tensor x = whole.tensor(entry);
      Tensor codes = Tensor::empty(DType::kF8E4M3, entry.shape);
      Tensor values = Tensor::empty(DType::kBF16, entry.shape);
      for (int64_t i = 0; i < x.numel(); ++i) {
        const uint8_t code = encode<E4M3>(to_float(x.as<bf16>()[i]));
        codes.mutable_as<uint8_t>()[i] = code;
        values.mutable_as<bf16>()[i] = to_bf16(decode<E4M3>(code));
      }
      plain.emplace_back(entry.name, codes);
      const bool linear = entry.shape.rank() == 2 && entry.name.ends_with(".weight");
      ours.emplace_back(entry.name, linear ? codes : values);
      if (!linear) continue;
      ours.emplace_back(scale_name(entry.name), one);
      metadata[entry.name] = {formats::fp8_tensor, entry.shape};
    }
  }
  write_safetensors(file_, ours, {{kQuantizationKey, to_json(metadata)}});
  const auto expected = latents();
  write_safetensors(file_, plain);
  EXPECT_EQ(latents(), expected);
}

TEST_F(ForeignModel, InputScalesAndMarkersReachTheCaller) {
  const fs::path ours = dir_ / "ours.safetensors", theirs = dir_ / "theirs.safetensors";
  const fs::path single = dir_ / "single.safetensors";
  fuse(file_, single, "");
  quantize(single, ours, formats::nvfp4);
  std::vector<std::pair<std::string, Tensor>> tensors;
  Metadata metadata;
  {
    const SafetensorsFile whole(ours);
    metadata = whole.metadata();
    for (const TensorEntry& entry : whole.tensors()) {
      tensors.emplace_back(entry.name, whole.tensor(entry));
    }
    Tensor scale = Tensor::empty(DType::kF32, {1});
    scale.mutable_as<float>()[0] = 0.3f;
    tensors.emplace_back("layers.0.attention.qkv.weight_input_scale", scale);
    metadata["halftone.notes"] =
        R"({"version":1,"weights":{"layers.0.attention.qkv.weight":{"full_precision":true}}})";
    write_safetensors(dir_ / "scaled.safetensors", tensors, metadata);
  }
  const auto config = zimage::parse_transformer_config(case_["transformer"], "transformer");
  const std::shared_ptr<Graph> graph = zimage::build_transformer(config, {1, 4, 4, 32}, {});
  for (const Dialect dialect : {Dialect::kComfyUI, Dialect::kModelOpt, Dialect::kCompressedTensors,
                                Dialect::kTorchao, Dialect::kHalftone}) {
    convert_file(dir_ / "scaled.safetensors", theirs, {dialect, {}}, test::silent);
    const Checkpoint checkpoint = Checkpoint::open(theirs);
    std::map<std::string, float> scales;
    std::set<std::string> full;
    load_weights(checkpoint, {&graph, 1}, zimage::names_in(checkpoint), &scales, &full);
    EXPECT_EQ(scales, (std::map<std::string, float>{{"layers.0.attention.to_q.weight", 0.3f},
                                                    {"layers.0.attention.to_k.weight", 0.3f},
                                                    {"layers.0.attention.to_v.weight", 0.3f}}))
        << to_string(dialect);
    EXPECT_EQ(full.size(), 3u) << to_string(dialect);
  }
}

}  // namespace
}  // namespace halftone
