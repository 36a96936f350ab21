// Z-Image from a folder in diffusers layout: tokenizer, text encoder, transformer and VAE.
#pragma once

#include <filesystem>
#include <memory>

#include "halftone/kernels/kernels.h"
#include "halftone/models/model.h"

namespace halftone::zimage {

struct LoadOptions {
  DType activations = DType::kF32;
  const Kernels* kernels = nullptr;
  Stream stream;
};

// Whether the folder says that it is a Z-Image pipeline.
bool is_zimage_folder(const std::filesystem::path& folder);

// Everything that can be wrong with the files is wrong here, before any long work.
std::unique_ptr<DiffusionModel> load_model(const std::filesystem::path& folder,
                                           const LoadOptions& options);

// What the text encoder reads: the prompt as a user's turn, and the start of the answer.
std::string chat_prompt(const std::string& prompt);
inline constexpr int64_t kMaxPromptTokens = 512;

}  // namespace halftone::zimage
