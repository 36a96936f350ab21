#include "halftone/numerics/format.h"

#include <algorithm>
#include <array>

namespace halftone {
namespace {

constexpr std::array kFormats = {
    formats::fp32,         formats::bf16,        formats::fp8,
    formats::fp8_tensor,   formats::fp8_e5m2,    formats::fp8_e5m2_tensor,
    formats::mxfp8,        formats::mxfp8_e5m2,  formats::nvfp4,
    formats::nvfp4_4over6, formats::nvfp4_16x16,
};

}  // namespace

int Format::element_bits() const {
  switch (element) {
    case ElementType::kF32:
      return 32;
    case ElementType::kBF16:
      return 16;
    case ElementType::kE4M3:
    case ElementType::kE5M2:
      return 8;
    case ElementType::kE2M1:
      return 4;
  }
  return 0;
}

float Format::element_max() const {
  switch (element) {
    case ElementType::kE4M3:
      return E4M3::kMax;
    case ElementType::kE5M2:
      return E5M2::kMax;
    case ElementType::kE2M1:
      return E2M1::kMax;
    case ElementType::kF32:
    case ElementType::kBF16:
      break;
  }
  return 0.0f;
}

int64_t Format::scales_per_row(int64_t cols) const {
  switch (span) {
    case ScaleSpan::kRow:
      return 1;
    case ScaleSpan::kBlock:
      return (cols + block - 1) / block;
    case ScaleSpan::kNone:
    case ScaleSpan::kTensor:
      break;
  }
  return 0;
}

std::span<const Format> all_formats() { return kFormats; }

std::optional<Format> find_format(std::string_view name) {
  const auto* found = std::find_if(kFormats.begin(), kFormats.end(),
                                   [&](const Format& f) { return f.name == name; });
  if (found == kFormats.end()) return std::nullopt;
  return *found;
}

Format plain_format(Format format) {
  format.tile_rows = 1;
  format.four_over_six = false;
  return named_format(format);
}

Format named_format(Format format) {
  if (format.element != ElementType::kE2M1) return format;
  format.name = format.four_over_six    ? formats::nvfp4_4over6.name
                : format.tile_rows != 1 ? formats::nvfp4_16x16.name
                                        : formats::nvfp4.name;
  return format;
}

std::string_view to_string(ExponentRounding rounding) {
  switch (rounding) {
    case ExponentRounding::kFloor:
      return "floor";
    case ExponentRounding::kCeil:
      return "ceil";
    case ExponentRounding::kEven:
      return "even";
    case ExponentRounding::kRCeil:
      return "rceil";
  }
  return "";
}

std::string_view to_string(ScaleSpan span) {
  switch (span) {
    case ScaleSpan::kNone:
      return "none";
    case ScaleSpan::kTensor:
      return "tensor";
    case ScaleSpan::kRow:
      return "row";
    case ScaleSpan::kBlock:
      return "block";
  }
  return "";
}

std::string why_invalid(const Format& f) {
  const bool is_fp4 = f.element == ElementType::kE2M1;
  const int expected_block = is_fp4 ? 16 : 32;
  if (f.span == ScaleSpan::kBlock && f.block != expected_block) {
    return is_fp4 ? "nvfp4 has blocks of 16" : "mxfp8 has blocks of 32";
  }
  if (is_fp4 != (f.scale == ScaleType::kE4M3) || is_fp4 != f.global_scale) {
    return "E2M1 elements go with E4M3 block scales and a global scale";
  }
  if (f.tile_rows != 1 && !(is_fp4 && f.tile_rows == 16)) return "tiles are 16x16, in nvfp4 only";
  if (f.static_scale && f.scale == ScaleType::kE8M0) return "E8M0 scales are never static";
  if (f.swizzled && f.span != ScaleSpan::kBlock) return "only block scales are swizzled";
  if (f.four_over_six && !is_fp4) return "4-over-6 is an option of nvfp4";
  if (f.four_over_six && f.tile_rows != 1) {
    // The squared error of a tile is summed along its rows, so the copy along the other dimension
    // could choose differently, and copies that agree are what tiles are for.
    return "4-over-6 and 16x16 tiles exclude each other";
  }
  if (f.min_block_scale < 0.0f || f.min_block_scale > E4M3::kMax ||
      decode<E4M3>(encode<E4M3>(f.min_block_scale)) != f.min_block_scale) {
    return "the smallest block scale must be a value of E4M3";
  }
  if (!is_fp4 && f.min_block_scale != 0.0f) return "a smallest block scale is an option of nvfp4";
  return {};
}

}  // namespace halftone
