// halftone bench folder: a model with random weights, as a folder: a Z-Image of any size, or
// whatever the configurations in another folder describe. What is to be tried at full size needs no
// download, and files are written tensor by tensor.
#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "halftone/base/error.h"
#include "halftone/base/text.h"
#include "halftone/cli/bench_support.h"
#include "halftone/cli/cli.h"
#include "halftone/engine/engine.h"
#include "halftone/io/json.h"
#include "halftone/io/output.h"
#include "halftone/io/safetensors_writer.h"
#include "halftone/models/qwen3/text_encoder.h"
#include "halftone/models/zimage/transformer.h"
#include "halftone/quantize/quantize_checkpoint.h"

namespace halftone::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

// Matrices of unit gain; weights of norms near 1, and everything else near 0.
Tensor random_weight(const std::string& name, const Shape& shape, uint64_t seed) {
  if (shape.rank() >= 2) {
    const int64_t inputs = shape.numel() / shape[0];
    return random_values(DType::kBF16, shape, seed, 1 / std::sqrt(static_cast<float>(inputs)));
  }
  constexpr float kNear = 0.05f;
  Tensor values = random_values(DType::kBF16, shape, seed, kNear);
  if (!name.ends_with(".weight")) return values;
  for (bf16& value : values.mutable_as<bf16>()) value = to_bf16(1 + to_float(value));
  return values;
}

int64_t write_random(const fs::path& file,
                     std::initializer_list<std::shared_ptr<const Graph>> graphs) {
  std::map<std::string, Shape> shapes;
  for (const auto& graph : graphs) {
    for (const auto& [name, value] : graph->weights()) shapes.emplace(name, value.shape());
  }
  std::vector<TensorSpec> specs;
  for (const auto& [name, shape] : shapes) specs.push_back({name, DType::kBF16, shape});
  fs::create_directories(file.parent_path());
  SafetensorsWriter writer(file, specs, {});
  // Weights of a kind and shape are alike: drawing 16 billion numbers would take minutes.
  std::map<std::string, Tensor> drawn;
  for (const TensorSpec& spec : specs) {
    Tensor& weight = drawn[spec.shape.str() + (spec.name.ends_with(".weight") ? "w" : "")];
    if (weight.shape() != spec.shape) {
      weight = random_weight(spec.name, spec.shape, drawn.size());
    }
    writer.write(spec.name, weight.bytes());
  }
  writer.finish();
  return writer.file_size();
}

ordered_json transformer_config(const zimage::TransformerConfig& c) {
  return {{"_class_name", "ZImageTransformer2DModel"},
          {"all_patch_size", {c.patch_size}},
          {"all_f_patch_size", {1}},
          {"in_channels", c.in_channels},
          {"dim", c.dim},
          {"n_layers", c.layers},
          {"n_refiner_layers", c.refiner_layers},
          {"n_heads", c.heads},
          {"n_kv_heads", c.heads},
          {"norm_eps", c.norm_eps},
          {"qk_norm", true},
          {"cap_feat_dim", c.cap_feat_dim},
          {"rope_theta", c.rope_theta},
          {"t_scale", c.t_scale},
          {"axes_dims", c.axes_dims},
          {"axes_lens", c.axes_lens}};
}

constexpr const char *kIndex = "model_index.json", *kMarker = "random_weights.json";

// What a folder says of its model: configurations and tokenizers, without any weights.
void copy_descriptions(const fs::path& from, const fs::path& to) {
  fs::create_directories(to);
  for (const auto& entry : fs::directory_iterator(from)) {
    const fs::path& path = entry.path();
    const std::string name = path.filename().string();
    if (entry.is_directory()) {
      copy_descriptions(path, to / name);
    } else if ((path.extension() == ".json" && !name.ends_with(".index.json")) ||
               path.extension() == ".txt" || path.extension() == ".model") {
      fs::copy_file(path, to / name);
    }
  }
}

constexpr const char* kPartFile = "diffusion_pytorch_model.safetensors";

// The VAE, as it is where it has weights: some families read what latents are scaled by from there.
int64_t write_codec(const ModelParts& parts, const fs::path& like, const fs::path& to) {
  const Codec& codec = *parts.codec;
  const fs::path from = like / codec.folder(), folder = to / codec.folder();
  int64_t bytes = 0;
  for (const auto& entry : fs::directory_iterator(from)) {
    if (entry.path().extension() != ".safetensors" &&
        !entry.path().string().ends_with(".safetensors.index.json")) {
      continue;
    }
    fs::copy_file(entry.path(), folder / entry.path().filename());
    bytes += static_cast<int64_t>(entry.file_size());
  }
  if (bytes > 0) return bytes;
  return write_random(folder / kPartFile,
                      {codec.decoder({1, codec.channels(), 1, 1}, {}),
                       codec.encoder({1, 3, codec.scale(), codec.scale()}, {})});
}

// Bytes of all weights; `written` gets the folders that they are in.
int64_t write_like(const fs::path& like, const fs::path& to, std::vector<std::string>& written) {
  const ModelParts parts = ModelParts::read(find_model(like));
  if (!parts.files.denoiser.empty()) {
    throw Error(ErrorCode::kInvalidInput, "--like", "{} is no folder of a model's parts",
                like.string());
  }
  copy_descriptions(like, to);
  written = parts.conditioner->folders();
  int64_t bytes = 0;
  for (size_t i = 0; i < written.size(); ++i) {
    bytes +=
        write_random(to / written[i] / "model.safetensors", {parts.conditioner->build(i, 1, {})});
  }
  const Denoiser& denoiser = *parts.denoiser;
  bytes += write_random(to / denoiser.folder() / kPartFile,
                        {denoiser.build(denoiser.smallest_shape(), {})});
  bytes += write_codec(parts, like, to);
  written.emplace_back(denoiser.folder());
  written.emplace_back(parts.codec->folder());
  return bytes;
}

}  // namespace

void bench_folder_like(const std::string& like, const std::string& output) {
  check_output_folder(output, kMarker);
  check_not_inputs({fs::path(output) / kIndex}, {like});
  OutputFolder folder(output);
  int64_t bytes = 0;
  std::vector<std::string> written;
  folder.write([&] {
    bytes = write_like(like, folder.staging(), written);
    write_file(folder.staging() / kMarker, ordered_json{{"like", like}}.dump());
  });
  folder.commit(written);
  fmt::print("{}: {}\n", printable(output, 1000), human_bytes(bytes));
}

void bench_folder(const BenchOptions& options, const std::string& output) {
  zimage::TransformerConfig config = bench_config(options);
  config.layers = options.layers;
  const fs::path like = default_model();
  if (like.empty()) {
    throw Error(
        ErrorCode::kInvalidInput, "halftone",
        "the model that comes with the program, whose tokenizer and VAE are taken, is gone");
  }
  // Only what this wrote is written over.
  check_output_folder(output, kMarker);
  OutputFolder folder(output);
  const fs::path& to = folder.staging();
  int64_t bytes = 0;
  folder.write([&] {
    for (const char* part : {"tokenizer", "scheduler", "vae"}) {
      copy_model_folder(like / part, to / part, "", [](const Progress&) {});
    }
    fs::copy_file(like / kIndex, to / kIndex);
    write_file(to / kMarker, ordered_json{{"dim", config.dim}, {"layers", config.layers}}.dump());
    fs::create_directories(to / "transformer");
    fs::create_directories(to / "text_encoder");
    write_file(to / "transformer" / "config.json", transformer_config(config).dump(1) + "\n");
    bytes = write_random(to / "transformer" / "diffusion_pytorch_model.safetensors",
                         {zimage::build_transformer(config, {1, 4, 4, 32}, {})});
    // As small as the model's own, but as wide as the transformer reads.
    auto text = read_json_file(like / "text_encoder" / "config.json");
    text["hidden_size"] = config.cap_feat_dim;
    write_file(to / "text_encoder" / "config.json", text.dump(1) + "\n");
    bytes += write_random(to / "text_encoder" / "model.safetensors",
                          {qwen3::build_text_encoder(qwen3::parse_config(text, "text"), 1, 1, {})});
  });
  folder.commit({"transformer", "text_encoder"});
  fmt::print("{}: {} blocks of width {}, {}\n", printable(output, 1000), config.layers, config.dim,
             human_bytes(bytes));
}

}  // namespace halftone::cli
