#include "tests/support/tiny_flux2.h"

#include "halftone/io/safetensors_writer.h"
#include "halftone/models/autoencoder_kl/autoencoder.h"
#include "halftone/models/flux2/transformer.h"
#include "halftone/models/qwen3/text_encoder.h"
#include "tests/support/flux2_statistics.h"
#include "tests/support/procedural.h"
#include "tests/support/temp_dir.h"

namespace halftone::test {
namespace {

namespace fs = std::filesystem;
using Tensors = std::vector<std::pair<std::string, Tensor>>;

Tensors tensors_of(std::initializer_list<std::shared_ptr<Graph>> graphs) {
  Weights weights;
  for (const auto& graph : graphs) weights.merge(procedural_weights(*graph));
  Tensors tensors;
  for (const auto& [name, weight] : weights) tensors.emplace_back(name, std::get<Tensor>(weight));
  return tensors;
}

void write_component(const fs::path& folder, const std::string& file, const nlohmann::json& config,
                     const Tensors& tensors) {
  fs::create_directories(folder);
  write_file(folder / "config.json", config.dump());
  write_safetensors(folder / file, tensors);
}

// With what transformers saves besides: the layers after the last one that is used, the norm after
// them, and the language model's head.
Tensors text_encoder(const nlohmann::json& description) {
  qwen3::Config config = qwen3::parse_config(description, "text_encoder");
  ++config.layers;  // the last one is never in the graph
  Tensors tensors = tensors_of({qwen3::build_text_encoder(config, 1, 1, {})});
  const auto add = [&](const std::string& name, const Shape& shape) {
    tensors.emplace_back(name, procedural_weight(name, shape));
  };
  add("model.norm.weight", {config.hidden_size});
  add("lm_head.weight", {config.vocab_size, config.hidden_size});
  return tensors;
}

Tensors autoencoder(const nlohmann::json& description) {
  const auto config = autoencoder_kl::parse_flux2_config(description, "vae");
  const int64_t size = config.scale();
  Tensors tensors = tensors_of({autoencoder_kl::build_decoder(config, 1, 1, 1, {}),
                                autoencoder_kl::build_encoder(config, 1, size, size, {})});
  for (const auto& statistic : flux2_statistics(config.sampler_channels())) {
    tensors.push_back(statistic);
  }
  return tensors;
}

}  // namespace

void write_flux2_folder(const fs::path& folder, const nlohmann::json& description,
                        const fs::path& tokenizer) {
  fs::create_directories(folder / "tokenizer");
  fs::create_directories(folder / "scheduler");
  fs::copy_file(tokenizer, folder / "tokenizer" / "tokenizer.json");
  write_file(folder / "tokenizer" / "tokenizer_config.json",
             description["tokenizer_config"].dump());
  write_file(folder / "model_index.json", description["model_index"].dump());
  write_file(folder / "scheduler" / "scheduler_config.json", description["scheduler"].dump());
  const auto config = flux2::parse_transformer_config(description["transformer"], "transformer");
  write_component(folder / "transformer", "diffusion_pytorch_model.safetensors",
                  description["transformer"],
                  tensors_of({flux2::build_transformer(config, {1, 1, 1, 1}, {})}));
  write_component(folder / "text_encoder", "model.safetensors", description["text_encoder"],
                  text_encoder(description["text_encoder"]));
  write_component(folder / "vae", "diffusion_pytorch_model.safetensors", description["vae"],
                  autoencoder(description["vae"]));
}

}  // namespace halftone::test
