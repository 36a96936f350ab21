// Pictures and latents [B, C, H, W] as sequences of tokens, and as fewer positions of more
// channels.
#pragma once

#include "halftone/graph/ops.h"

namespace halftone::nn {

// [B, C, H, W] -> [B, H * W, C], row by row, and back.
Value tokens_of(Value picture);
Value picture_of(Value tokens, int64_t height, int64_t width);

// Patches of size x size become channels in the order (channel, row, column):
// [B, C, H, W] -> [B, C * size^2, H / size, W / size], and back.
Value patchify(Value picture, int64_t size);
Value unpatchify(Value patches, int64_t size);

}  // namespace halftone::nn
