#include "halftone/tensor/dtype.h"

#include <array>

namespace halftone {
namespace {

struct Entry {
  std::string_view name;
  int bits;
  int alignment;
};

// In the order of the enum.
constexpr std::array<Entry, kDTypeCount> kEntries = {{
    {"BOOL", 8, 1},    {"F4", 4, 1},          {"F6_E2M3", 6, 1},     {"F6_E3M2", 6, 1},
    {"U8", 8, 1},      {"I8", 8, 1},          {"F8_E5M2", 8, 1},     {"F8_E4M3", 8, 1},
    {"F8_E8M0", 8, 1}, {"F8_E4M3FNUZ", 8, 1}, {"F8_E5M2FNUZ", 8, 1}, {"I16", 16, 2},
    {"U16", 16, 2},    {"F16", 16, 2},        {"BF16", 16, 2},       {"I32", 32, 4},
    {"U32", 32, 4},    {"F32", 32, 4},        {"C64", 64, 4},        {"F64", 64, 8},
    {"I64", 64, 8},    {"U64", 64, 8},
}};

const Entry& entry(DType dtype) { return kEntries[static_cast<size_t>(dtype)]; }

}  // namespace

std::string_view name_of(DType dtype) { return entry(dtype).name; }
int bits_of(DType dtype) { return entry(dtype).bits; }
int alignment_of(DType dtype) { return entry(dtype).alignment; }

std::optional<DType> find_dtype(std::string_view name) {
  for (int i = 0; i < kDTypeCount; ++i) {
    if (kEntries[i].name == name) return static_cast<DType>(i);
  }
  return std::nullopt;
}

bool is_high_precision(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16;
}

}  // namespace halftone
