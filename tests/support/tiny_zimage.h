// A tiny Z-Image folder in diffusers layout, with procedural weights.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>

namespace halftone::test {

// `description` has transformer, text_encoder, vae and scheduler: their config.json.
void write_zimage_folder(const std::filesystem::path& folder, const nlohmann::json& description,
                         const std::filesystem::path& tokenizer);

}  // namespace halftone::test
