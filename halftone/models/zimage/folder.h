// The files of a model folder that say what its parts are: model_index.json, and the tokenizer's
// settings beside tokenizer.json.
#pragma once

#include <filesystem>

#include "halftone/io/tokenizer.h"

namespace halftone::zimage {

// Whether the folder says that it is a Z-Image pipeline.
bool is_zimage_folder(const std::filesystem::path& folder);

// An Error where model_index.json names a part that is not the one implemented here, such as
// another scheduler, or parts that are not known.
void check_model_index(const std::filesystem::path& folder);

// An Error where tokenizer_config.json asks for something that tokenizer.json does not say already.
// A folder without the file is as good.
void check_tokenizer_config(const std::filesystem::path& folder, const Tokenizer& tokenizer);

}  // namespace halftone::zimage
