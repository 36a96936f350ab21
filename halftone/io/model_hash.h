// A fingerprint of a checkpoint: XXH3-128 over the bytes of its files, in order of their names.
#pragma once

#include <span>
#include <string>

#include "halftone/io/checkpoint.h"

namespace halftone {

// 32 hex digits, or "unknown" in a build without xxHash.
std::string model_hash(std::span<const Checkpoint* const> checkpoints);
// 32 hex digits of a text: the same hash, or in a build without xxHash another one.
std::string text_hash(std::string_view text);

}  // namespace halftone
