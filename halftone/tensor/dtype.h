// Element types of stored tensors: every one that safetensors knows.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace halftone {

enum class DType : uint8_t {
  kBool,
  kF4,  // E2M1, two to a byte
  kF6E2M3,
  kF6E3M2,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kF8E8M0,
  kF8E4M3FNUZ,
  kF8E5M2FNUZ,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kC64,
  kF64,
  kI64,
  kU64,
};
inline constexpr int kDTypeCount = static_cast<int>(DType::kU64) + 1;

std::string_view name_of(DType dtype);  // as safetensors spells it: "BF16", "F8_E4M3"
std::optional<DType> find_dtype(std::string_view name);
int bits_of(DType dtype);       // 4 for F4
int alignment_of(DType dtype);  // bytes a pointer to it must be aligned to

// Types that hold the values of a weight as they are: F32, BF16 and F16.
bool is_high_precision(DType dtype);

}  // namespace halftone
