#include "tests/support/tiny_folder.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "halftone/engine/model_parts.h"
#include "halftone/io/safetensors_file.h"
#include "halftone/io/safetensors_writer.h"
#include "tests/support/data.h"
#include "tests/support/procedural.h"
#include "tests/support/temp_dir.h"

namespace halftone::test {
namespace {

namespace fs = std::filesystem;

void write_weights(const fs::path& folder, const char* file,
                   std::initializer_list<std::shared_ptr<Graph>> graphs) {
  Weights weights;
  for (const auto& graph : graphs) weights.merge(procedural_weights(*graph));
  std::vector<std::pair<std::string, Tensor>> tensors;
  for (const auto& [name, weight] : weights) tensors.emplace_back(name, std::get<Tensor>(weight));
  write_safetensors(folder / file, tensors);
}

// Which of the tokenizers a folder of this class is.
void write_tokenizer(const fs::path& folder, const std::string& kind, bool second) {
  const fs::path all = kData / "tokenizer";
  fs::create_directories(folder);
  const auto copy = [&](const fs::path& from) {
    for (const auto& file : fs::directory_iterator(from)) {
      fs::copy_file(file, folder / file.path().filename(), fs::copy_options::overwrite_existing);
    }
  };
  if (kind.starts_with("T5")) return copy(all / "t5");
  copy(all / "clip");
  if (second) copy(all / "clip_g");
}

}  // namespace

void write_tiny_folder(const fs::path& folder, const nlohmann::json& description) {
  for (const auto& [name, content] : description["files"].items()) {
    fs::create_directories((folder / name).parent_path());
    write_file(folder / name, content.dump());
  }
  bool second = false;
  for (const auto& [part, kind] : description["files"]["model_index.json"].items()) {
    if (!part.starts_with("tokenizer") || !kind[1].is_string()) continue;
    write_tokenizer(folder / part, kind[1].get<std::string>(), second);
    second = true;
  }
  const ModelParts parts = ModelParts::read(find_model(folder));
  const auto& encoders = parts.conditioner->folders();
  for (size_t i = 0; i < encoders.size(); ++i) {
    write_weights(folder / encoders[i], "model.safetensors", {parts.conditioner->build(i, 1, {})});
  }
  const Denoiser& denoiser = *parts.denoiser;
  write_weights(folder / denoiser.folder(), "diffusion_pytorch_model.safetensors",
                {denoiser.build(denoiser.smallest_shape(), {})});
  const Codec& codec = *parts.codec;
  write_weights(folder / codec.folder(), "diffusion_pytorch_model.safetensors",
                {codec.decoder({1, codec.channels(), 1, 1}, {}),
                 codec.encoder({1, 3, codec.scale(), codec.scale()}, {})});
}

void write_tiny_folder(const std::filesystem::path& folder, const char* family, const char* name) {
  const SafetensorsFile fixture(kData / family / fmt::format("pipeline_{}.safetensors", name));
  write_tiny_folder(folder, nlohmann::json::parse(fixture.metadata().at("case")));
}

}  // namespace halftone::test
