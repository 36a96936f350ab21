// A folder of a tiny model as diffusers would save it: its configs from a fixture of whole runs,
// its tokenizers from tests/data/tokenizer, and weights that are a function of their names.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>

namespace halftone::test {

// `description` has "files": what is in every config.json by its place in the folder.
void write_tiny_folder(const std::filesystem::path& folder, const nlohmann::json& description);
// Of tests/data/FAMILY/pipeline_NAME.safetensors.
void write_tiny_folder(const std::filesystem::path& folder, const char* family, const char* name);

}  // namespace halftone::test
