#include "halftone/runtime/capability.h"

namespace halftone {
namespace {

// The least capabilities: of CUDA 13 at all, and of tensor cores for each kind of operand.
constexpr int kOldestGpu = 75;
constexpr int kBf16 = 80;
constexpr int kFp8 = 89;
constexpr int kBlockScaled = 100;

FormatSupport on_cpu(const Format& format) {
  if (format.element == ElementType::kF32) return {Support::kNative, "float32 arithmetic"};
  if (format.element == ElementType::kBF16) {
    return {Support::kEmulated, "float32 arithmetic on bf16-rounded values"};
  }
  return {Support::kEmulated, "float32 arithmetic on exactly dequantized values"};
}

FormatSupport on_cuda(int capability, const Format& format) {
  if (capability < kOldestGpu) {
    return {Support::kUnavailable, "needs compute capability 7.5 or later"};
  }
  if (format.element == ElementType::kF32) return {Support::kNative, "float32 arithmetic"};
  const std::string_view wide = capability >= kBf16
                                    ? "bf16 tensor cores on exactly dequantized values"
                                    : "float32 arithmetic on exactly dequantized values";
  if (format.element == ElementType::kBF16) {
    if (capability >= kBf16) return {Support::kNative, "bf16 tensor cores"};
    return {Support::kEmulated, "float32 arithmetic on bf16-rounded values (bf16 needs 8.0)"};
  }
  if (format.span == ScaleSpan::kBlock) {
    if (capability >= kBlockScaled) return {Support::kNative, "block-scaled tensor cores"};
    return {Support::kEmulated, wide};
  }
  if (capability < kFp8) return {Support::kEmulated, wide};
  if (format.span == ScaleSpan::kRow && capability != 90) {
    // Only Hopper's GEMMs take a scale per row and channel; elsewhere they follow the product.
    return {Support::kNative, "FP8 tensor cores, row scales after the product"};
  }
  return {Support::kNative, "FP8 tensor cores"};
}

}  // namespace

FormatSupport format_support(const DeviceInfo& info, const Format& format) {
  return info.device.kind == DeviceKind::kCpu ? on_cpu(format) : on_cuda(info.capability(), format);
}

std::string_view to_string(Support support) {
  switch (support) {
    case Support::kNative:
      return "native";
    case Support::kEmulated:
      return "emulated";
    case Support::kUnavailable:
      return "unavailable";
  }
  return "";
}

}  // namespace halftone
