// A small family that is in no table: two encoders, of which the second gives one vector for a
// whole prompt, and a denoiser that reads text and vector. For what no family here needs yet.
#pragma once

#include <filesystem>

#include "halftone/models/families.h"

namespace halftone::test {

inline constexpr int64_t kPooledText = 6, kPooledWidth = 5, kPooledTokens = 8;

// With an encoder whose vectors have this width or, where it is 0, that gives none.
const Family& pooled_family();
const Family& family_with_wider_vectors();
const Family& family_without_vectors();

// Its weights; nothing else is in its folder.
FoundModel write_pooled_model(const std::filesystem::path& folder, const Family& family);

}  // namespace halftone::test
