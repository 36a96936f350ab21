// Z-Image: tokenizer, text encoder, transformer and VAE, from a folder in diffusers layout or with
// the transformer from a single file.
#pragma once

#include <filesystem>
#include <memory>

#include "halftone/models/model.h"
#include "halftone/models/zimage/folder.h"

namespace halftone::zimage {

// Where the parts of a model lie.
struct ModelFiles {
  std::filesystem::path base;         // a folder in diffusers layout
  std::filesystem::path transformer;  // a file that stands for base/transformer; empty: none
};

// Whether the file holds a Z-Image transformer, by the names of its tensors.
bool is_zimage_file(const std::filesystem::path& file);

// Everything that can be wrong with the files is wrong here, before any long work.
std::unique_ptr<DiffusionModel> load_model(const ModelFiles& files, const LoadOptions& options);

// What the text encoder reads where the tokenizer has no template of its own: the prompt as a
// user's turn, and the start of the answer.
std::string chat_prompt(const std::string& prompt);
inline constexpr int64_t kMaxPromptTokens = 512;

}  // namespace halftone::zimage
