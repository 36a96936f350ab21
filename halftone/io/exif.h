// The one thing that a picture cannot be shown without: how the camera was held.
#pragma once

#include <cstddef>
#include <span>

namespace halftone {

// Of a JPEG's bytes: 1 upright, 2 mirrored, 3 upside down, 4 both, 5 to 8 the same on its side, as
// Exif counts them. 1 where the file does not say, or says something else.
int exif_orientation(std::span<const std::byte> jpeg);
// The same of the block itself, which PNG and WebP have in a chunk of its own.
int exif_block_orientation(std::span<const std::byte> block);

}  // namespace halftone
