#include "halftone/quantize/calibration_file.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "halftone/base/error.h"
#include "halftone/io/resume_file.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;

constexpr const char* kCalibrationKey = "halftone.calibration";
constexpr const char* kDone = "halftone.prompts";
constexpr const char *kSearch = "halftone.search", *kLosses = "losses";
constexpr const char *kAmax = "amax.", *kHistogram = "histogram.", *kMoments = "moments.";

std::string point_name(const char* what, int prompt, int step) {
  return fmt::format("{}.{}.{}", what, prompt, step);
}

template <class T, class Range>
Tensor tensor_of(DType dtype, const Shape& shape, const Range& values) {
  Tensor x = Tensor::empty(dtype, shape);
  std::copy(values.begin(), values.end(), x.mutable_as<T>().begin());
  return x;
}

class CalibrationReader {
 public:
  CalibrationReader(const fs::path& path, const CalibrationLayout& layout)
      : file_(path), layout_(layout) {}

  CalibrationProgress read() {
    CalibrationProgress progress;
    progress.done = prompts_done();
    for (const auto& [weight, width] : layout_.inputs) progress.inputs[weight] = range(weight);
    for (const auto& [weight, width] : layout_.moments) {
      progress.moments[weight].restore(width, sums(weight, width, progress.inputs.at(weight)));
    }
    for (const auto& [prompt, step] : layout_.points) {
      if (prompt >= progress.done) continue;
      progress.points.push_back(
          {prompt, step, picture("latents", prompt, step), picture("velocity", prompt, step)});
    }
    if (taken_ != file_.tensors().size()) fail("it holds tensors of something else");
    check_resume_file(file_);
    return progress;
  }

 private:
  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> message, Args&&... args) const {
    throw Error(ErrorCode::kInvalidInput, file_.path().string(), "{}",
                fmt::format(message, std::forward<Args>(args)...));
  }

  std::string metadata(const char* key) const {
    const auto found = file_.metadata().find(key);
    return found == file_.metadata().end() ? std::string() : found->second;
  }

  int prompts_done() const {
    if (metadata(kCalibrationKey) != layout_.fingerprint) {
      fail("it is of other options or another model");
    }
    const std::string text = metadata(kDone);
    int done = 0;
    const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), done);
    if (failed != std::errc() || end != text.data() + text.size() || done < 1 ||
        done > layout_.prompts) {
      fail("{} is '{}', not a number from 1 to {}", kDone, printable(text), layout_.prompts);
    }
    return done;
  }

  Tensor tensor(const std::string& name, const Shape& shape, DType dtype = DType::kF32) {
    const TensorEntry& entry = file_.at(name);
    if (entry.dtype != dtype || entry.shape != shape) {
      fail("'{}' is not {} {}", printable(name), name_of(dtype), shape.str());
    }
    ++taken_;
    return file_.tensor(entry);
  }

  // A copy: the file is soon replaced.
  Tensor picture(const char* what, int prompt, int step) {
    const Tensor x = tensor(point_name(what, prompt, step), layout_.latents);
    return tensor_of<float>(DType::kF32, x.shape(), x.as<float>());
  }

  InputRange range(const std::string& weight) {
    InputRange range;
    const Tensor amax = tensor(kAmax + weight, {layout_.steps});
    const Tensor bins = tensor(kHistogram + weight, {InputRange::kBins}, DType::kI64);
    // NaN and Inf are what a model may give; a sign is not.
    for (const float a : amax.as<float>()) {
      if (std::signbit(a)) fail("'{}{}' holds a negative magnitude", kAmax, printable(weight));
      range.amax.push_back(a);
    }
    constexpr int64_t kMostValues = int64_t{1} << 60;  // more can be counted without overflow
    for (const int64_t n : bins.as<int64_t>()) {
      if (n < 0 || n > kMostValues) {
        fail("'{}{}' holds {}, which is no count", kHistogram, printable(weight), n);
      }
    }
    std::copy_n(bins.as<int64_t>().begin(), range.histogram.size(), range.histogram.begin());
    return range;
  }

  // Sums of x x^T: symmetric, no diagonal entry negative, and no other larger than those of its row
  // and column allow. Sums of inputs that are not finite or huge may be anything; compensated
  // rounding makes no use of such.
  std::vector<float> sums(const std::string& weight, int64_t width, const InputRange& range) {
    const Tensor x = tensor(kMoments + weight, {width, width});
    const std::span<const float> sums = x.as<float>();
    constexpr float kMostSquared = 1e12f;
    if (!(range.largest() < kMostSquared)) return {sums.begin(), sums.end()};
    const auto at = [&](int64_t i, int64_t j) { return double{sums[i * width + j]}; };
    double largest = 0;
    for (int64_t i = 0; i < width; ++i) largest = std::max(largest, at(i, i));
    for (int64_t i = 0; i < width; ++i) {
      for (int64_t j = 0; j <= i; ++j) {
        const double most = std::sqrt(at(i, i) * at(j, j));
        // Of sums in float, in no certain order; squares of tiny inputs are lost altogether.
        const double rounding = 0.01 * most + 1e-8 * largest;
        const bool fits = at(i, i) >= 0 && std::fabs(at(i, j)) <= most + rounding &&
                          std::fabs(at(i, j) - at(j, i)) <= rounding;
        if (!fits) {
          fail("'{}{}' holds no sums of squares: entry {}, {} is {}", kMoments, printable(weight),
               i, j, at(i, j));
        }
      }
    }
    return {sums.begin(), sums.end()};
  }

  const SafetensorsFile file_;
  const CalibrationLayout& layout_;
  size_t taken_ = 0;  // tensors that belong
};

}  // namespace

void write_calibration(const fs::path& path, const std::string& fingerprint, int done,
                       const Calibration& calibration) {
  std::vector<std::pair<std::string, Tensor>> tensors;
  for (const auto& [weight, range] : calibration.inputs) {
    const auto steps = static_cast<int64_t>(range.amax.size());
    tensors.emplace_back(kAmax + weight, tensor_of<float>(DType::kF32, {steps}, range.amax));
    tensors.emplace_back(kHistogram + weight,
                         tensor_of<int64_t>(DType::kI64, {InputRange::kBins}, range.histogram));
  }
  for (const auto& [weight, moments] : calibration.moments) {
    const int64_t width = moments.size();
    tensors.emplace_back(kMoments + weight,
                         tensor_of<float>(DType::kF32, {width, width}, moments.sums()));
  }
  for (const CalibrationPoint& p : calibration.points) {
    tensors.emplace_back(point_name("latents", p.prompt, p.step), p.latents);
    tensors.emplace_back(point_name("velocity", p.prompt, p.step), p.velocity);
  }
  write_resume_file(path, tensors, {{kCalibrationKey, fingerprint}, {kDone, std::to_string(done)}});
}

void write_losses(const fs::path& path, const std::string& fingerprint,
                  const std::vector<double>& losses) {
  const auto count = static_cast<int64_t>(losses.size());
  write_resume_file(path, {{kLosses, tensor_of<double>(DType::kF64, {count}, losses)}},
                    {{kSearch, fingerprint}});
}

std::vector<double> read_losses(const fs::path& path, const LossLayout& layout) {
  const SafetensorsFile file(path);
  const auto fail = [&](const std::string& why) {
    throw Error(ErrorCode::kInvalidInput, path.string(), "{}", why);
  };
  const auto found = file.metadata().find(kSearch);
  if (found == file.metadata().end() || found->second != layout.fingerprint) {
    fail("it is of other options or another model");
  }
  const TensorEntry& entry = file.at(kLosses);
  if (entry.dtype != DType::kF64 || entry.shape.rank() != 1 || entry.shape[0] < 1 ||
      static_cast<size_t>(entry.shape[0]) > layout.most) {
    fail(fmt::format("'{}' is not F64 of 1 to {}", kLosses, layout.most));
  }
  if (file.tensors().size() != 1) fail("it holds tensors of something else");
  const Tensor x = file.tensor(entry);
  const std::span<const double> losses = x.as<double>();
  for (const double loss : losses) {
    if (!(loss >= 0 && loss <= kNoNumber)) fail(fmt::format("{} is no loss", loss));
  }
  check_resume_file(file);
  return {losses.begin(), losses.end()};
}

CalibrationProgress read_calibration(const fs::path& path, const CalibrationLayout& layout) {
  return CalibrationReader(path, layout).read();
}

}  // namespace halftone
