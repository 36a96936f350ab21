// A number format as a value: element codec, scales and their rule. Options are fields, so a
// variant is a copy with a field changed: `Format f = formats::nvfp4; f.tile_rows = 16;`
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "halftone/numerics/scale_rules.h"

namespace halftone {

enum class ElementType : uint8_t { kF32, kBF16, kE4M3, kE5M2, kE2M1 };
enum class ScaleType : uint8_t { kNone, kF32, kE8M0, kE4M3 };

// What shares a scale. A row runs along the contraction: a token of an activation [tokens, K], an
// output channel of a weight [N, K].
enum class ScaleSpan : uint8_t { kNone, kTensor, kRow, kBlock };

struct Format {
  std::string_view name;
  ElementType element = ElementType::kF32;
  ScaleType scale = ScaleType::kNone;
  ScaleSpan span = ScaleSpan::kNone;
  int block = 0;              // values per scale along the contraction, for kBlock
  bool global_scale = false;  // one F32 scale above the block scales (NVFP4)

  // MX only.
  ExponentRounding rounding = ExponentRounding::kRCeil;

  // NVFP4 only. Tools differ on the smallest block scale they write: none (0, the default here),
  // 2^-6 (torchao) or 2^-9 (ModelOpt).
  float min_block_scale = 0.0f;
  // 16 shares each block scale among a tile of 16 rows, so that copies of a matrix quantized along
  // either dimension hold the same values. Scales are still stored per row.
  int tile_rows = 1;
  // Maps a block's largest value to 4 or to 6, whichever gives the smaller squared error.
  bool four_over_six = false;

  // Of activations. The scale that spans rows (of a tensor, of every row alike, NVFP4's global one)
  // is calibrated beforehand and the same for all items of a batch, instead of taken from amax.
  bool static_scale = false;
  // Block scales lie in the tiles that block-scaled products read (swizzle.h), not row by row.
  bool swizzled = false;

  bool quantized() const { return span != ScaleSpan::kNone; }
  int element_bits() const;
  float element_max() const;

  // Bytes of one row of `cols` codes; an odd last NVFP4 value leaves a nibble zero.
  int64_t code_bytes(int64_t cols) const { return (cols * element_bits() + 7) / 8; }
  // Scales along one row of `cols` values; the last block may be short.
  int64_t scales_per_row(int64_t cols) const;
  int64_t scale_bytes() const { return scale == ScaleType::kF32 ? 4 : 1; }

  bool operator==(const Format&) const = default;
};

namespace formats {
// clang-format off
inline constexpr Format fp32{"fp32", ElementType::kF32};
inline constexpr Format bf16{"bf16", ElementType::kBF16};
inline constexpr Format fp8{"fp8", ElementType::kE4M3, ScaleType::kF32, ScaleSpan::kRow};
inline constexpr Format fp8_tensor{"fp8-tensor", ElementType::kE4M3, ScaleType::kF32, ScaleSpan::kTensor};
inline constexpr Format fp8_e5m2{"fp8-e5m2", ElementType::kE5M2, ScaleType::kF32, ScaleSpan::kRow};
inline constexpr Format fp8_e5m2_tensor{"fp8-e5m2-tensor", ElementType::kE5M2, ScaleType::kF32, ScaleSpan::kTensor};
inline constexpr Format mxfp8{"mxfp8", ElementType::kE4M3, ScaleType::kE8M0, ScaleSpan::kBlock, 32};
inline constexpr Format mxfp8_e5m2{"mxfp8-e5m2", ElementType::kE5M2, ScaleType::kE8M0, ScaleSpan::kBlock, 32};
inline constexpr Format nvfp4{"nvfp4", ElementType::kE2M1, ScaleType::kE4M3, ScaleSpan::kBlock, 16, true};
// For weights; what reads them sees nvfp4.
inline constexpr Format nvfp4_4over6{"nvfp4-4over6", ElementType::kE2M1, ScaleType::kE4M3, ScaleSpan::kBlock, 16, true, ExponentRounding::kRCeil, 0, 1, true};
inline constexpr Format nvfp4_16x16{"nvfp4-16x16", ElementType::kE2M1, ScaleType::kE4M3, ScaleSpan::kBlock, 16, true, ExponentRounding::kRCeil, 0, 16};
// clang-format on
}  // namespace formats

// Every format above, in that order.
std::span<const Format> all_formats();
std::optional<Format> find_format(std::string_view name);
// Without options of how weights are rounded, under the name of what is left: nvfp4 for each of its
// variants. Values are decoded alike, so this is what other tools and activations know them as.
Format plain_format(Format format);
// The same, under the name that its options have above.
Format named_format(Format format);

std::string_view to_string(ExponentRounding rounding);
std::string_view to_string(ScaleSpan span);

// Empty if the options of a format fit together, otherwise why they do not.
std::string why_invalid(const Format& format);

}  // namespace halftone
