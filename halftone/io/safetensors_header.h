// The header of a safetensors file: 8 bytes of length, then JSON that places every tensor in the
// bytes that follow. Parsed without trusting a single field.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "halftone/tensor/dtype.h"
#include "halftone/tensor/shape.h"

namespace halftone {

struct TensorEntry {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
  int64_t begin = 0;  // byte range in the data that follows the header
  int64_t end = 0;

  int64_t byte_size() const { return end - begin; }
};

using Metadata = std::map<std::string, std::string>;

struct SafetensorsHeader {
  std::vector<TensorEntry> tensors;  // in the order of their bytes
  Metadata metadata;
  int64_t data_offset = 0;  // where the data starts in the file
};

// The reference implementation refuses longer headers too.
inline constexpr int64_t kMaxSafetensorsHeader = 100'000'000;

// Parses and checks the header of a whole file. Every byte of data must belong to exactly one
// tensor. `file` names it in errors.
SafetensorsHeader parse_safetensors_header(std::span<const std::byte> bytes,
                                           const std::string& file);

// The 8 length bytes and the JSON, padded so that the data is 8-byte aligned. Offsets are taken
// from the entries. An Error where parse_safetensors_header would refuse it for its size.
std::string write_safetensors_header(std::span<const TensorEntry> tensors, const Metadata& metadata,
                                     const std::string& file);

}  // namespace halftone
