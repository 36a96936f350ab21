// The end of a chain that is quantized: scales from the values at hand or beforehand, and codes.
#include "halftone/base/error.h"
#include "halftone/kernels/cuda/fused_writer.h"

namespace halftone::cuda {
namespace {

std::string peak_of(const std::string& x) {
  return fmt::format(
      "  #pragma unroll\n  for (int i = 0; i < kWide; ++i) peak = Largest::of(peak, "
      "{}[v][i]);\n",
      x);
}

}  // namespace

void FusedWriter::write_quantize(const RowStep& s) {
  const Format& f = *s.format;
  const std::string x = operand(s, 0);
  if (f.span == ScaleSpan::kBlock) return write_quantize_blocks(s, x);
  const char* element = f.element == ElementType::kE4M3 ? "E4M3" : "E5M2";
  const std::string codes = fmt::format(
      "store_codes<{}>(static_cast<unsigned char*>(p.outputs[{}]) + static_cast<long long>(row) "
      "* kLength + c, {}[v], factor);",
      element, s.output, x);
  if (f.static_scale) {
    const bool rows = f.span == ScaleSpan::kRow;
    body_ += fmt::format(
        "  {{ const float scale = p.static_scales[{0}], factor = 1.0f / scale;\n  if "
        "(threadIdx.x "
        "== 0 && blockIdx.y == 0{1}) static_cast<float*>(p.scales[{0}])[{2}] = scale;\n{3}  }}\n",
        s.output, rows ? "" : " && row == 0", rows ? "row" : "0", each_vector(codes));
    return;
  }
  HT_ASSERT(f.span == ScaleSpan::kRow);
  body_ += fmt::format(
      "  {{ float peak = 0.0f;\n  #pragma unroll\n  for (int v = 0; v < kVectors; ++v) {{\n{0}"
      "  }}\n  peak = reduce_block<Largest, kThreads>(peak, peaks[{1}][parity]);\n"
      "  const float scale = amax_scale(peak, {2}::kMax), factor = 1.0f / "
      "scale;\n  if (threadIdx.x == 0) static_cast<float*>(p.scales[{3}])[row] = scale;\n{4}  "
      "}}\n",
      peak_of(x), sites_++, element, s.output, each_vector(codes));
}

void FusedWriter::write_quantize_blocks(const RowStep& s, const std::string& x) {
  const Format& f = *s.format;
  const int64_t lanes = f.block / wide_, per_row = f.scales_per_row(length_);
  HT_ASSERT(f.block % wide_ == 0 && !f.four_over_six && f.tile_rows == 1);
  std::string text = fmt::format(
      "  #pragma unroll\n  for (int v = 0; v < kVectors; ++v) {{ float peak = 0.0f;\n{}  peak = "
      "reduce_lanes<Largest, {}>(peak);\n  const int c = first + v * (kThreads * kWide);\n",
      peak_of(x), lanes);
  if (f.global_scale) {
    HT_ASSERT(f.static_scale && length_ % f.block == 0);
    body_ += fmt::format(
        "  if (row == 0 && threadIdx.x == 0 && blockIdx.y == 0) *p.global_scales[{0}] = "
        "p.static_scales[{0}];\n",
        s.output);
    text += fmt::format(
        "  const float g = p.static_scales[{0}];\n  const unsigned char scale = "
        "nvfp4_block_scale(peak, 6.0f, g, {1:a}f);\n  const float factor = "
        "nvfp4_reciprocal(decode<E4M3>(scale), g);\n  store_nibbles(static_cast<unsigned "
        "char*>(p.outputs[{0}]) + static_cast<long long>(row) * (kLength / 2) + c / 2, {2}[v], "
        "factor, is_finite(peak) && is_finite(factor), c < kLength);\n",
        s.output, f.min_block_scale, x);
  } else {
    const char* element = f.element == ElementType::kE4M3 ? "E4M3" : "E5M2";
    text += fmt::format(
        "  const unsigned char scale = mx_scale<{0}>(peak, "
        "static_cast<ExponentRounding>({1}));\n  const float factor = reciprocal_e8m0(scale);\n"
        "  if (c < kLength) store_codes<{0}>(static_cast<unsigned char*>(p.outputs[{2}]) + "
        "static_cast<long long>(row) * kLength + c, {3}[v], factor);\n",
        element, static_cast<int>(f.rounding), s.output, x);
  }
  body_ += text +
           fmt::format(
               "  if (c < kLength && threadIdx.x % {0} == 0) store_scale<{1}>(static_cast<unsigned "
               "char*>(p.scales[{2}]), row, c / {3}, {4}, scale); }}\n",
               lanes, f.swizzled, s.output, f.block, per_row);
}

}  // namespace halftone::cuda
