#include "halftone/quantize/rounded_weights.h"

#include <algorithm>
#include <cmath>

#include "halftone/base/error.h"
#include "halftone/io/resume_file.h"
#include "halftone/numerics/minifloat.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;

constexpr const char* kRoundedKey = "halftone.rounded";
constexpr const char *kCodes = "codes", *kScales = "scales", *kGlobal = "global_scale";

std::string name_of(const char* part, const Format& format, const std::string& weight) {
  return fmt::format("{}.{}.{}", part, format.name, weight);
}

class RoundedReader {
 public:
  RoundedReader(const fs::path& path, const RoundedLayout& layout) : file_(path), layout_(layout) {}

  RoundedWeights read() {
    const auto found = file_.metadata().find(kRoundedKey);
    if (found == file_.metadata().end() || found->second != layout_.fingerprint) {
      fail("it is of other options or another model");
    }
    RoundedWeights weights;
    for (const auto& [name, weight] : layout_.weights) {
      for (const Format& format : weight.formats) {
        if (file_.find(name_of(kCodes, format, name)) == nullptr) continue;
        weights.emplace(std::pair(name, std::string(format.name)),
                        parts(name, weight.shape, format));
      }
    }
    if (taken_ != file_.tensors().size()) fail("it holds tensors of something else");
    check_resume_file(file_);
    return weights;
  }

 private:
  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> message, Args&&... args) const {
    throw Error(ErrorCode::kInvalidInput, file_.path().string(), "{}",
                fmt::format(message, std::forward<Args>(args)...));
  }

  QuantizedTensor parts(const std::string& weight, const Shape& shape, const Format& format) {
    QuantizedTensor q{format, shape, 1, {}, {}, {}};
    const auto read = [&](const char* part, DType dtype, const Shape& stored) {
      const std::string name = name_of(part, format, weight);
      const TensorEntry& entry = file_.at(name);
      if (entry.dtype != dtype || entry.shape != stored) {
        fail("'{}' is not {} {}", printable(name), halftone::name_of(dtype), stored.str());
      }
      ++taken_;
      return file_.tensor(entry);
    };
    q.codes = read(kCodes, code_dtype(format), {shape[0], format.code_bytes(shape[1])});
    q.scales = read(kScales, scale_dtype(format), scale_shape(format, shape[0], shape[1]));
    if (format.global_scale) q.global_scale = read(kGlobal, DType::kF32, {1});
    check_codes(weight, format, q.codes);
    check_scales(weight, format, q.scales);
    if (format.global_scale) check_floats(weight, q.global_scale);
    return q;
  }

  // Weights are numbers: no code is NaN or Inf.
  void check_codes(const std::string& weight, const Format& format, const Tensor& codes) const {
    if (format.element == ElementType::kE2M1) return;
    const unsigned most = format.element == ElementType::kE4M3 ? 0x7E : 0x7B;
    unsigned largest = 0;
    for (const std::byte code : codes.bytes()) {
      largest = std::max(largest, std::to_integer<unsigned>(code) & 0x7Fu);
    }
    if (largest > most) fail("'{}' holds a code that is no number", printable(weight));
  }
  void check_scales(const std::string& weight, const Format& format, const Tensor& scales) const {
    if (format.scale == ScaleType::kF32) return check_floats(weight, scales);
    // E8M0 has one NaN, E4M3 also a sign.
    const unsigned most = format.scale == ScaleType::kE8M0 ? 0xFE : 0x7E;
    for (const std::byte scale : scales.bytes()) {
      if (std::to_integer<unsigned>(scale) > most) {
        fail("'{}' has a scale that is none", printable(weight));
      }
    }
  }
  void check_floats(const std::string& weight, const Tensor& scales) const {
    for (const float scale : scales.as<float>()) {
      if (!(scale > 0 && std::isfinite(scale))) {
        fail("'{}' has a scale of {}", printable(weight), scale);
      }
    }
  }

  const SafetensorsFile file_;
  const RoundedLayout& layout_;
  size_t taken_ = 0;  // tensors that belong
};

}  // namespace

void write_rounded(const fs::path& path, const std::string& fingerprint,
                   const RoundedWeights& weights) {
  std::vector<std::pair<std::string, Tensor>> tensors;
  for (const auto& [key, q] : weights) {
    const auto& name = key.first;
    tensors.emplace_back(name_of(kCodes, q.format, name), q.codes);
    tensors.emplace_back(name_of(kScales, q.format, name), q.scales);
    if (q.format.global_scale) {
      tensors.emplace_back(name_of(kGlobal, q.format, name), q.global_scale);
    }
  }
  write_resume_file(path, tensors, {{kRoundedKey, fingerprint}});
}

RoundedWeights read_rounded(const fs::path& path, const RoundedLayout& layout) {
  return RoundedReader(path, layout).read();
}

}  // namespace halftone
