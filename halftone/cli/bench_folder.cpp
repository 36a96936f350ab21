// halftone bench folder: a Z-Image of any size with random weights, as a folder. What is to be
// tried at full size needs no download, and files are written tensor by tensor.
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

int64_t write_random(const fs::path& file, const Graph& graph) {
  std::vector<TensorSpec> specs;
  for (const auto& [name, value] : graph.weights()) {
    specs.push_back({name, DType::kBF16, value.shape()});
  }
  SafetensorsWriter writer(file, specs, {});
  uint64_t seed = 1;
  for (const TensorSpec& spec : specs) {
    writer.write(spec.name, random_weight(spec.name, spec.shape, seed++).bytes());
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

}  // namespace

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
  constexpr const char *kIndex = "model_index.json", *kMarker = "random_weights.json";
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
                         *zimage::build_transformer(config, {1, 4, 4, 32}, {}));
    // As small as the model's own, but as wide as the transformer reads.
    auto text = read_json_file(like / "text_encoder" / "config.json");
    text["hidden_size"] = config.cap_feat_dim;
    write_file(to / "text_encoder" / "config.json", text.dump(1) + "\n");
    bytes += write_random(to / "text_encoder" / "model.safetensors",
                          *qwen3::build_text_encoder(qwen3::parse_config(text, "text"), 1, 1, {}));
  });
  folder.commit({"transformer", "text_encoder"});
  fmt::print("{}: {} blocks of width {}, {}\n", printable(output, 1000), config.layers, config.dim,
             human_bytes(bytes));
}

}  // namespace halftone::cli
