// A tiny FLUX.2-klein folder in diffusers layout, with procedural weights.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>

namespace halftone::test {

// `description` has model_index, transformer, text_encoder, vae, scheduler and tokenizer_config:
// the files of those names. Weights are those of tools/golden/flux2_pipeline.py.
void write_flux2_folder(const std::filesystem::path& folder, const nlohmann::json& description,
                        const std::filesystem::path& tokenizer);

}  // namespace halftone::test
