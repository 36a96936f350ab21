// A tiny Z-Image folder in diffusers layout, with procedural weights.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>

namespace halftone::test {

// `description` has transformer, text_encoder, vae and scheduler: their config.json.
void write_zimage_folder(const std::filesystem::path& folder, const nlohmann::json& description,
                         const std::filesystem::path& tokenizer);

// Such a description of one wide layer: its activations take more memory than its weights. `vae`:
// changes to the VAE's config.
nlohmann::json one_layer_zimage(const nlohmann::json& vae = nlohmann::json::object());

}  // namespace halftone::test
