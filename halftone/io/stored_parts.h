// The format of one weight that another tool quantized, told by the dtypes and shapes of its parts.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "halftone/io/safetensors_header.h"
#include "halftone/io/stored_weights.h"

namespace halftone {

// What the parts are called, if they are there.
struct PartNames {
  std::string codes, scales, global_scale, input_scale;
  bool reciprocal = false;          // 1/global scale and 1/input scale are stored
  bool global_is_optional = false;  // NVFP4 without one: it is 1
};
struct PartEntries {
  const TensorEntry* codes;
  const TensorEntry* scales;
  const TensorEntry* global_scale;
};

// Format, shape and parts; scale layout, nibble order and name are the caller's to decide. An Error
// names the part that is missing or does not fit.
StoredWeight describe_parts(const PartNames& names, const PartEntries& parts,
                            const std::string& file);

// Block scales must have the shape of the layout that was decided on.
void check_block_scales(const StoredWeight& weight, const TensorEntry& scales,
                        const std::string& file);

// "a.b." of "a.b.SUFFIX"; nothing where the name ends in another way.
std::optional<std::string> layer_of(std::string_view name, std::string_view suffix);

// Whether only a part of a quantized weight is called so.
bool has_part_name(std::string_view name);
// Tensors that are called so, or lie beside a quantized weight, and were not consumed. A bias may.
std::vector<std::string> unexplained_parts(std::span<const TensorEntry* const> tensors,
                                           const StoredWeights& stored);

// Whether a calibrated scale of the input has a meaning.
bool takes_input_scale(const Format& format);

}  // namespace halftone
