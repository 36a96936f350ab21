// A fingerprint of a checkpoint: XXH3-128 over the bytes of its files, in order of their names.
#pragma once

#include <span>
#include <string>

#include "halftone/io/checkpoint.h"

namespace halftone {

// 32 hex digits, or "unknown" in a build without xxHash.
std::string model_hash(std::span<const Checkpoint* const> checkpoints);
// The same of a text.
std::string text_hash(std::string_view text);

}  // namespace halftone
