#include "tests/support/tiny_zimage.h"

#include "halftone/io/safetensors_writer.h"
#include "halftone/models/autoencoder_kl/autoencoder.h"
#include "halftone/models/qwen3/text_encoder.h"
#include "halftone/models/zimage/transformer.h"
#include "tests/support/procedural.h"
#include "tests/support/temp_dir.h"

namespace halftone::test {
namespace {

namespace fs = std::filesystem;

void write_component(const fs::path& folder, const std::string& file, const nlohmann::json& config,
                     std::initializer_list<std::shared_ptr<Graph>> graphs) {
  fs::create_directories(folder);
  write_file(folder / "config.json", config.dump());
  Weights weights;
  for (const auto& graph : graphs) weights.merge(procedural_weights(*graph));
  std::vector<std::pair<std::string, Tensor>> tensors;
  for (const auto& [name, weight] : weights) tensors.emplace_back(name, std::get<Tensor>(weight));
  write_safetensors(folder / file, tensors);
}

}  // namespace

void write_zimage_folder(const fs::path& folder, const nlohmann::json& description,
                         const fs::path& tokenizer) {
  fs::create_directories(folder / "tokenizer");
  fs::create_directories(folder / "scheduler");
  fs::copy_file(tokenizer, folder / "tokenizer" / "tokenizer.json");
  write_file(folder / "model_index.json", R"({"_class_name":"ZImagePipeline"})");
  write_file(folder / "scheduler" / "scheduler_config.json", description["scheduler"].dump());
  const auto transformer =
      zimage::parse_transformer_config(description["transformer"], "transformer");
  write_component(folder / "transformer", "diffusion_pytorch_model.safetensors",
                  description["transformer"],
                  {zimage::build_transformer(transformer, {1, 4, 4, 32}, {})});
  const auto text = qwen3::parse_config(description["text_encoder"], "text");
  write_component(folder / "text_encoder", "model.safetensors", description["text_encoder"],
                  {qwen3::build_text_encoder(text, 1, 1, {})});
  const auto vae = autoencoder_kl::parse_config(description["vae"], "vae");
  write_component(folder / "vae", "diffusion_pytorch_model.safetensors", description["vae"],
                  {autoencoder_kl::build_decoder(vae, 1, 2, 2, {}),
                   autoencoder_kl::build_encoder(vae, 1, 8, 8, {})});
}

nlohmann::json one_layer_zimage(const nlohmann::json& vae) {
  auto description = nlohmann::json::parse(R"({
    "transformer": {"dim": 384, "n_heads": 3, "axes_dims": [32, 48, 48], "n_layers": 1,
      "n_refiner_layers": 1, "cap_feat_dim": 64, "axes_lens": [512, 256, 256]},
    "text_encoder": {"vocab_size": 2000, "hidden_size": 64, "intermediate_size": 128,
      "rms_norm_eps": 1e-6, "rope_theta": 1000000.0,
      "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16},
    "vae": {"block_out_channels": [64, 32, 32], "latent_channels": 16, "layers_per_block": 1,
      "norm_num_groups": 4, "use_quant_conv": false, "use_post_quant_conv": false,
      "mid_block_add_attention": true, "scaling_factor": 0.5, "shift_factor": 0.1},
    "scheduler": {"shift": 3.0}})");
  description["vae"].update(vae);
  return description;
}

}  // namespace halftone::test
