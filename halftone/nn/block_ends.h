// Where a network's repeated blocks begin to differ from what stands before them, and where they
// end: marks for whoever lets some steps do without the blocks between.
#pragma once

namespace halftone::nn {

// Outputs of a graph: the tokens of the picture after the first block and after the last one, or
// its channels [B, C, H, W], alike in type.
inline constexpr const char* kAfterFirstBlock = "after.first";
inline constexpr const char* kAfterLastBlock = "after.last";

}  // namespace halftone::nn
